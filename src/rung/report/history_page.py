"""The history as pages that lead to each other, as `rung serve` shows them: the list, an entry, two entries, all trends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from rung.records.compare import Saved
from rung.records.history import Entry, Measured, Series
from rung.report import units
from rung.report.benchmarks import change, difference_lines
from rung.report.embedded import Links, page_of
from rung.report.history import entry_rows, figure, figure_interval, first_figure, moment, target_of, what
from rung.report.trend import change_line

SCRIPTS = ("page", "tables", "export")
_VERDICTS = {
    "slower": "B is slower",
    "faster": "B is faster",
    "mixed": "Some times of B are longer, others shorter",
    "inconclusive": "No time of B is told apart from that of A",
}


def list_page(entries: Sequence[Entry], *, store: str, more: bool, chosen: Mapping[str, str], commands: Sequence[str], nav: Links) -> str:  # fmt: skip
    """A row an entry. more: whether there are older ones; chosen: what the list was narrowed to (`of`, `tag`)."""
    rows = []
    for entry in entries:
        first = first_figure(entry)
        rows.append(
            {
                "entry": entry,
                "when": moment(entry.created),
                "target": target_of(entry),
                **({first.name: (first.value, figure(first.value, first.unit), _between(first))} if first else {}),
            }
        )
    return page_of(
        "history.html", SCRIPTS, nav=nav, rows=rows, store=store, more=more, chosen=chosen, commands=commands
    )


def entry_page(entry: Entry, files: Sequence[tuple[str, int]], *, nav: Links) -> str:
    """All that is known of an entry. files: (path, bytes) of those in its run directory."""
    from markupsafe import Markup

    links = [
        (path, f"files/{entry.id}/{quote(os.fsencode(path))}", (size, units.data_size(size))) for path, size in files
    ]
    document = Markup("<pre>{}</pre>").format(units.clean(json.dumps(entry.document or {}, indent=1)))
    return page_of(
        "entry.html",
        SCRIPTS,
        nav=nav,
        entry=entry,
        title=target_of(entry),
        rows=entry_rows(entry),
        figures=[(one.name, figure_interval(one, one.unit), what(one)) for one in entry.measured],
        page=next((link for path, link, _ in links if path == "report.html"), ""),
        files=links,
        document=document,
    )


def compare_page(found: Saved, entries: Sequence[Entry], *, nav: Links) -> str:
    """Two entries: how each time differs, and what else does. entries: A and B."""
    rows = [(row.name, row.before, row.after, row.change, change(row), row.apart) for row in found.rows]
    return page_of(
        "entries.html",
        SCRIPTS,
        nav=nav,
        title=_VERDICTS[found.verdict],
        sides=[
            (side, entry.id, f"{entry.of} {target_of(entry)}", moment(entry.created))
            for side, entry in zip("AB", entries, strict=True)
        ],
        rows=rows,
        only=[(side.upper(), names) for side, names in found.only_in.items() if names],
        differs=[units.one_line(line) for line in difference_lines(found.differs)],
        warnings=found.warnings,
    )


def trends_page(series: Sequence[Series], *, name: str, names: Sequence[str], nav: Links) -> str:
    """A row a series that was measured more than once. name: of the figure, one of `names`."""
    rows = [
        {
            "what": what(one),
            "by": one.of,
            "device": one.device,
            "host": one.host,
            "count": len(one.points),
            "entry": one.points[-1].entry,
            "value": one.points[-1].value,
            "last": figure(one.points[-1].value, one.unit),
            "when": moment(one.points[-1].created),
            "changes": [change_line(found, one) for found in one.changes],
        }
        for one in series
    ]
    return page_of("trends.html", SCRIPTS, nav=nav, rows=rows, name=name, names=names)


def message_page(title: str, said: str, *, nav: Links) -> str:
    """A sentence instead of a page."""
    return page_of("message.html", (), nav=nav, title=title, said=said)


def _between(found: Measured) -> str:
    """The interval alone, "" where none is known."""
    ends = (found.low, found.high)
    return "" if None in ends else " – ".join(figure(end, found.unit) for end in ends)
