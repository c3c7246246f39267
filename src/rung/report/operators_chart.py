"""The roofline of a trace's operators, by their work and bytes; of two traces, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rung.analysis.pictures import Roofs
from rung.analysis.roofline import coverage
from rung.report import units
from rung.report.roofline_chart import Point, Roof, roofline

_MATRIX = ("gemm", "attention", "convolution", "moe")  # families whose work the matrix units can do
_LEAST = 0.1  # of the GPU's time: with less, a picture of the dots would say nothing of the trace
_LINKED = 0.005  # of the time: smaller dots have no line from before to after


@dataclass(frozen=True)
class OperatorRoofline:
    """picture: "" where no peaks are known, or the dots cover less than a tenth of the time. note: what there is to say of the roofs, and of what has no dot."""

    picture: str
    note: str


def operator_roofline(roofs: Roofs) -> OperatorRoofline:
    """A dot an operator at its inputs, over the roofs of the GPU's data sheet."""
    if roofs.table.is_empty():
        return OperatorRoofline("", "")
    return _drawn([(roofs, "", "")])


def before_and_after(before: Roofs, after: Roofs, names: tuple[str, str]) -> list[OperatorRoofline]:
    """Both in one picture where they have the same roofs, else one picture each. names: of the two sides."""
    sides = [(before, names[0], "before"), (after, names[1], "after")]
    known = [side for side in sides if not side[0].table.is_empty()]
    if len(known) == 2 and before.peaks == after.peaks:
        return [_drawn(known)]
    return [_drawn([side]) for side in known]


def _drawn(sides: Sequence[tuple[Roofs, str, str]]) -> OperatorRoofline:
    """sides: the roofs, the name (as of a trace) and the class of its dots."""
    peaks = sides[0][0].peaks
    notes, rows, shares = [], [], []
    for roofs, name, css in sides:
        known = _known(roofs)
        shares.append(sum(row["time_ns"] for row in known) / max(1, coverage(roofs.table)["total_ns"]))
        notes.append((f"{name}: " if name else "") + _covered(roofs, shares[-1]))
        rows.append([(row, _point(row, roofs, name, css)) for row in known])
    if peaks is None:
        return OperatorRoofline("", " ".join([*notes, "The peaks of this GPU are not known."]))
    if max(shares) < _LEAST:
        return OperatorRoofline("", " ".join([*notes, "That is too little for a picture."]))
    rates = {(r["precision"], r["family"] in _MATRIX) for side in rows for r, _ in side if r["precision"]}
    lines = [Roof("HBM", peaks.bandwidth / 1e12, slope=True)]
    for precision, matrix in sorted(rates):
        unit = "matrix" if matrix else "vector"
        lines.append(Roof(f"{unit} {precision}", peaks.rate(precision, matrix=matrix) / 1e12, slope=False))
    picture = roofline([point for side in rows for _, point in side], lines, _links(rows) if len(rows) == 2 else ())
    slope = (
        f"The slope is the memory's bandwidth, {units.digits(peaks.bandwidth / 1e12)} TB/s ({units.clean(peaks.name)})."
    )
    return OperatorRoofline(picture, " ".join([slope, *notes]))


def _known(roofs: Roofs) -> list[dict[str, Any]]:
    return [
        row
        for row in roofs.table.iter_rows(named=True)
        if row["intensity"] and row["tflop_per_s"] and row["bound"] in ("compute", "memory", None)
    ]


def _covered(roofs: Roofs, dots: float) -> str:
    """How much of the GPU's time has a dot, and what the rest is."""
    modelled = coverage(roofs.table)["share"]
    rest = [
        f"{units.percent(round(share, 2))} {what}"
        for share, what in (
            (modelled - dots, "is copies and other work without floating-point operations"),
            (1 - modelled, "is work that Rung cannot count"),
        )
        if share >= 0.005
    ]
    return "; ".join([f"Dots cover {units.percent(round(dots, 2))} of the GPU's time", *rest]) + "."


def _point(row: dict[str, Any], roofs: Roofs, name: str, css: str) -> Point:
    total = max(1, coverage(roofs.table)["total_ns"])
    what = _named(row)
    return Point(f"{name}: {what}" if name else what, "HBM", row["intensity"], row["tflop_per_s"], row["time_ns"] / total, _gap(row), css)  # fmt: skip


def _links(rows: Sequence[Sequence[tuple[dict[str, Any], Point]]]) -> list[tuple[Point, Point]]:
    """The same operator at the same inputs, before and after."""
    before, after = ({_named(row): point for row, point in side} for side in rows)
    pairs = [(before[name], after[name]) for name in before if name in after]
    return [pair for pair in pairs if max(point.share for point in pair) >= _LINKED]


def _named(row: dict[str, Any]) -> str:
    return f"{units.one_line(row['op'])} {units.one_line(row['inputs'])}".strip()


def _gap(row: dict[str, Any]) -> str:
    """How far an operator is from its roof: "42% of its roof (memory), 1.2 ms above it"."""
    if row["roof_share"] is None:
        return ""
    lost = row["time_ns"] - row["floor_ns"]
    above = f", {units.duration(lost)} above it" if lost > 0 else ""
    cached = "; its data fit into the cache" if row["fits_cache"] and row["roof_share"] > 1 else ""
    return f"{units.percent(round(row['roof_share'], 2))} of its roof ({row['bound']}){above}{cached}"
