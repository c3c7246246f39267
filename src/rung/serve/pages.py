"""What the server answers: a path and its query in, a page or a file out. It reads the history anew each time, as others write to it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from rung.errors import InputError, RungError, UsageError
from rung.measure.change_points import FALSE_ALARMS
from rung.measure.trend import series_of
from rung.records.history import Entry, Series, Trend
from rung.report import climbs, history_page, trend_page
from rung.report.climbs import climb_of
from rung.runs.history import History
from rung.serve.files import climb_run, files_of, open_file
from rung.timing.saved import compare_entries

COMMANDS = ("bench", "compare", "climb", "profile")
FIGURES = ("time", "memory", "speedup")
MOST = 500  # entries of a list, unless all are asked for
HTML = "text/html; charset=utf-8"
# What a browser shows; all else it saves.
_TEXTS = {".json": "application/json", ".toml": "text/plain; charset=utf-8"}
Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Answer:
    """status: of HTTP; kind: a media type; body: read from its start, closed by who sends it; size: bytes of it."""

    body: BinaryIO
    size: int
    status: int = 200
    kind: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def page(cls, text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
        data = text.encode("utf-8")
        return cls(io.BytesIO(data), len(data), status, headers=headers or {})


@dataclass(frozen=True)
class Pages:
    """The pages over one history."""

    store: History

    def answer(self, path: str, query: Query) -> Answer:
        """The answer to a request.

        Args:
            path: Of the URL, as it came: "/entry", "/files/12/traces/baseline.json.gz".
            query: Every value of each name.
        """
        made = {
            "/": self._list,
            "/entry": self._entry,
            "/trend": self._trend,
            "/trends": self._trends,
            "/compare": self._compare,
        }
        try:
            if path in made:
                return Answer.page(made[path](query))
            if path.startswith("/files/"):
                return self._file(path.removeprefix("/files/").split("/"))
            return sentence(404, "There is no such page", "the history is at the link above.", path)
        except UsageError as error:
            return sentence(404, "This cannot be shown", str(error), path)
        except RungError as error:
            return sentence(404 if path.startswith("/files/") else 500, "This cannot be shown", str(error), path)

    def _list(self, query: Query) -> str:
        chosen = {name: query[name][0] for name in ("of", "tag") if name in query}
        most = None if query.get("most") == ["all"] else MOST + 1
        entries = self.store.entries(of=chosen.get("of", ""), tag=chosen.get("tag", ""), most=most)
        more = most is not None and len(entries) > MOST
        shown = entries[:MOST] if more else entries
        return history_page.list_page(shown, store=self.store.name, more=more, chosen=chosen, commands=COMMANDS, nav=nav())  # fmt: skip

    def _entry(self, query: Query) -> str:
        entry = self._named(_one(query, "id"))
        return history_page.entry_page(entry, files_of(entry), nav=nav())

    def _compare(self, query: Query) -> str:
        numbers = query.get("entry", ())
        if len(numbers) != 2:
            ticked = f"{len(numbers)} {'entry is' if len(numbers) == 1 else 'entries are'}"
            raise UsageError(f"{ticked} ticked; tick two.")
        a, b = sorted(map(self._named, numbers), key=lambda entry: (entry.created, entry.id))
        if a.of == b.of == "climb":  # their run directories say more, where they are still there
            with contextlib.suppress(InputError):
                return climbs.page([climb_of(climb_run(entry).record()) for entry in (a, b)], nav=nav())
        return history_page.compare_page(compare_entries(a, b), [a, b], nav=nav())

    def _trend(self, query: Query) -> str:
        """Every series that a figure of the entry belongs to."""
        entry = self._named(_one(query, "id"))
        entries, found = self.store.entries(documents=True), dict[str, Series]()
        for one in entry.measured:
            for series in series_of(entries, name=one.name, target=one.target, options=one.options, of=entry.of):
                if any(point.entry == entry.id for point in series.points):
                    found[repr((series.name, series.target, series.options, series.variant))] = series
        if not found:
            raise UsageError(f"entry {entry.id} has no measurement.")
        trend = Trend(store=self.store.name, false_alarms=FALSE_ALARMS, series=list(found.values()))
        return trend_page.page(trend, nav=nav())

    def _trends(self, query: Query) -> str:
        name = _one(query, "figure") if "figure" in query else FIGURES[0]
        if name not in FIGURES:
            raise UsageError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}.")
        series = [one for one in series_of(self.store.entries(documents=True), name=name) if len(one.points) > 1]
        return history_page.trends_page(series, name=name, names=FIGURES, nav=nav())

    def _file(self, parts: Sequence[str]) -> Answer:
        """A report's page is shown, and runs no script but Rung's own; what is no text is saved."""
        number, *names = (os.fsdecode(unquote_to_bytes(part)) for part in parts)
        file = open_file(self._named(number), names)
        whole = "/".join(names)
        kind = HTML if whole == "report.html" else _TEXTS.get(os.path.splitext(whole)[1], "")
        saved = {} if kind else {"Content-Disposition": "attachment"}
        return Answer(file, os.fstat(file.fileno()).st_size, 200, kind or "application/octet-stream", saved)

    def _named(self, number: str) -> Entry:
        if not (number.isascii() and number.isdigit()):
            raise UsageError(f"{number!r} is not the number of an entry.")
        return self.store.entry(number)


def nav(path: str = "/") -> list[tuple[str, str]]:
    """(name, link) of the pages that every page leads to. Links are relative: there may be a proxy in front, with a prefix."""
    up = "../" * (path.count("/") - 1)
    return [("History", up or "./"), ("Trends", f"{up}trends")]


def sentence(status: int, title: str, said: str, path: str = "/", headers: Mapping[str, str] | None = None) -> Answer:
    """A sentence as a page."""
    return Answer.page(history_page.message_page(title, said, nav=nav(path)), status, headers)


def _one(query: Query, name: str) -> str:
    """The value of a name that is there once. Raises UsageError."""
    values = query.get(name, ())
    if len(values) != 1:
        raise UsageError(f"this page needs one {name}; follow a link of the history.")
    return values[0]
