"""Two traces as one page: what became faster and what slower, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rung.analysis.breakdown import part_of
from rung.analysis.diff import Diff
from rung.analysis.pictures import Roofs
from rung.records.diff import Changed, Side
from rung.records.record import record_of
from rung.report import breakdowns, charts, units
from rung.report.diff import verdict
from rung.report.diff_chart import MOST, diff_bars
from rung.report.embedded import page_of
from rung.report.operators_chart import before_and_after
from rung.report.table_html import html_table

BY = {
    "category": "By kind of work",
    "op": "By operator",
    "shape": "By operator and shapes",
    "module": "By module",
    "instance": "By module, one by one",
    "kernel": "By kernel name",
}
# The parts of a step where the kinds of work were not compared (`--by op`): (class of the colour, title).
_COARSE = {
    "computation_ns": ("other", "computation"),
    "exposed_communication_ns": ("communication", "exposed communication"),
    "exposed_memcpy_ns": ("copy", "exposed copies"),
    "idle_ns": ("idle", "idle"),
}
_COARSE_ON_HOST = {"computation_ns": ("other", "operators"), "idle_ns": ("launch_gap", "Python and dispatch")}


def page(found: Diff, roofs: Sequence[Roofs]) -> str:
    """The page as text. roofs: of the base and of the new trace."""
    from markupsafe import Markup

    tables = []
    sides = _parts(found)
    for name, table in found.tables.items():
        frame = table.with_columns(what=_kinds(table["what"], found.clock)) if name == "category" else table
        picture = diff_bars(
            record_of(list[Changed], frame.to_dicts()),
            f"{BY[name]}: what takes less time to the left, what takes more to the right",
        )
        same = frame.filter(frame["change"] == "same").height
        tables.append(
            (BY[name], Markup(picture), max(0, frame.height - same - MOST), same, html_table(name, "", frame))
        )
    return page_of("diff.html", ("page", "tables", "export"),
        facts=lambda side: facts(side, found.clock),
        step=_step(found),
        counted="operator calls" if found.clock == "cpu" else "kernels",
        verdict=verdict(found.ratio),
        base=found.base,
        new=found.new,
        notes=found.notes,
        bars=Markup(charts.stacked(_bars(found))),
        parts=[(css, title, *(units.duration(side.get(css, ("", 0.0))[1]) for side in sides)) for css, title in _legend(sides)],
        kernels=[units.count(side.kernels / side.per) for side in (found.base, found.new)],
        rooflines=[(Markup(one.picture), one.note) for one in before_and_after(roofs[0], roofs[1], ("Base", "New"))],
        tables=tables,
    )  # fmt: skip


def _parts(found: Diff) -> list[dict[str, tuple[str, float]]]:
    """Of the base and of the new side: class of the colour to (title, ns of a step of a GPU), in the order of the bars."""
    frame = found.tables.get("category")
    sides = []
    for side, column in ((found.base, "base_ns"), (found.new, "new_ns")):
        if frame is None:
            coarse = _COARSE_ON_HOST if found.clock == "cpu" else _COARSE
            parts = {css: (title, side.parts[key] / side.per) for key, (css, title) in coarse.items()}
        else:  # its rows are the busy time, each moment once
            sums = dict.fromkeys(breakdowns.PARTS, 0.0)
            for kind, ns in frame.select("what", column).iter_rows():
                sums[part_of(kind)] += ns
            sums["launch_gap" if found.clock == "cpu" else "idle"] = side.parts["idle_ns"] / side.per
            parts = {key: (breakdowns.part(key, found.clock), ns) for key, ns in sums.items()}
        sides.append({css: part for css, part in parts.items() if part[1]})
    return sides


def _legend(sides: Sequence[dict[str, tuple[str, float]]]) -> list[tuple[str, str]]:
    known = {css: title for side in sides for css, (title, _) in side.items()}
    order = [*breakdowns.PARTS]
    return sorted(known.items(), key=lambda part: order.index(part[0]))


def _kinds(categories: pl.Series, clock: str) -> pl.Series:
    """Categories of work in the words of the parts."""
    return pl.Series(categories.name, [breakdowns.kind(category, clock) for category in categories], dtype=pl.String)


def _step(found: Diff) -> str:
    return "step" if found.clock == "cpu" else "step of a GPU"


def _bars(found: Diff) -> list[tuple[str, list[tuple[str, str, float]]]]:
    return [
        (
            f"{name}: {units.duration(side.step_ns)} per {_step(found)}",
            [(css, title, ns) for css, (title, ns) in parts.items()],
        )
        for (name, side), parts in zip((("Base", found.base), ("New", found.new)), _parts(found), strict=True)
    ]


def facts(side: Side, clock: str) -> str:
    """What a side is: its GPU, how many there are, and how many steps were recorded."""
    many = [
        units.clean(side.device),
        f"{side.ranks} ranks" if side.ranks > 1 else "",
        f"{side.gpus} GPUs" if side.gpus > 1 and clock == "gpu" else "",
        f"{side.steps} steps" if side.steps > 1 else "",
    ]
    return ", ".join(part for part in many if part)
