"""Two traces as one page: what became faster and what slower, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rung.analysis.diff import Diff
from rung.analysis.pictures import Roofs
from rung.report import charts, units
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
# The parts of a step, each in the colour of the part of a breakdown that is nearest to it.
_PARTS = {
    "computation_ns": ("gemm", "computation"),
    "exposed_communication_ns": ("communication", "exposed communication"),
    "exposed_memcpy_ns": ("copy", "exposed copies"),
    "idle_ns": ("idle", "idle"),
}


def page(found: Diff, roofs: Sequence[Roofs]) -> str:
    """The page as text. roofs: of the base and of the new trace."""
    from markupsafe import Markup

    tables = []
    for name, frame in found.tables.items():
        picture = diff_bars(
            frame.to_dicts(), f"{BY[name]}: what takes less time to the left, what takes more to the right"
        )
        same = frame.filter(frame["change"] == "same").height
        tables.append(
            (BY[name], Markup(picture), max(0, frame.height - same - MOST), same, html_table(name, "", frame))
        )
    return page_of("diff.html", ("page", "tables", "export"),
        facts=facts,
        verdict=verdict(found.ratio),
        base=found.base,
        new=found.new,
        notes=found.notes,
        bars=Markup(charts.stacked(_bars(found))),
        parts=[(css, title, *(units.duration(side.parts[key] / side.per) for side in (found.base, found.new))) for key, (css, title) in _PARTS.items() if found.base.parts[key] or found.new.parts[key]],
        kernels=[units.count(round(side.kernels / side.per, 1)) for side in (found.base, found.new)],
        rooflines=[(Markup(one.picture), one.note) for one in before_and_after(roofs[0], roofs[1], ("Base", "New"))],
        tables=tables,
    )  # fmt: skip


def _bars(found: Diff) -> list[tuple[str, list[tuple[str, str, float]]]]:
    return [
        (
            f"{name}: {units.duration(side.step_ns)} per step of a GPU",
            [(css, title, side.parts[key] / side.per) for key, (css, title) in _PARTS.items() if side.parts[key]],
        )
        for name, side in (("Base", found.base), ("New", found.new))
    ]


def facts(side: Any) -> str:
    """What a side is: its GPU, how many there are, and how many steps were recorded."""
    many = [
        units.clean(side.device),
        f"{side.ranks} ranks" if side.ranks > 1 else "",
        f"{side.gpus} GPUs" if side.gpus > 1 else "",
        f"{side.steps} steps" if side.steps > 1 else "",
    ]
    return ", ".join(part for part in many if part)
