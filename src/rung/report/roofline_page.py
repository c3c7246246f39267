"""The roofline of a trace's kernels as a page: a file that needs no network and no script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rung.analysis.kernel_names import readable
from rung.report import units
from rung.report.embedded import page_of
from rung.report.roofline_chart import LEVELS, Point, Roof, roofline

if TYPE_CHECKING:
    import polars as pl

MOST = 200  # kernels in the table


def page(kernels: pl.DataFrame, roofs: pl.DataFrame, source: str) -> str:
    """The page as text. kernels, roofs: the analyses `counters` and `counter_roofline` of the trace."""
    from markupsafe import Markup

    points, lines = _points(kernels, roofs), _roofs(roofs)
    heights = {roof.name: units.digits(roof.height) for roof in lines if roof.slope and not roof.measured}
    used = set(heights) | {point.level for point in points}
    levels = [(level, LEVELS[level], heights.get(level)) for level in LEVELS if level in used]
    return page_of(
        "roofline.html",
        ("page", "export"),
        source=source,
        chart=Markup(roofline(points, lines)),
        measured=any(roof.measured for roof in lines),
        levels=levels,
        without=kernels.height - len({point.kernel for point in points}),
        kernels=[row | {"kernel": readable(row["kernel"])} for row in kernels.head(MOST).iter_rows(named=True)],
        more=max(0, kernels.height - MOST),
    )


def _points(kernels: pl.DataFrame, roofs: pl.DataFrame) -> list[Point]:
    total = kernels["time_ns"].sum() or 1
    rates = {(row["kernel"], row["device"]): row for row in kernels.iter_rows(named=True)}
    found = []
    for row in roofs.iter_rows(named=True):
        of = rates.get((row["kernel"], row["device"]), {})
        # The Infinity Cache's traffic is that of HBM: one dot for both.
        if row["roof"] in LEVELS and row["roof"] != "Infinity Cache" and row["intensity"] and of.get("tflop_per_s"):
            name = readable(units.clean(row["kernel"]))
            found.append(Point(name, row["roof"], row["intensity"], of["tflop_per_s"], of["time_ns"] / total))
    return found


def _roofs(roofs: pl.DataFrame) -> list[Roof]:
    """Each roof that some kernel uses, once: of several GPUs, the highest."""
    found: dict[tuple[str, bool], Roof] = {}
    row: dict[str, Any]
    for row in roofs.iter_rows(named=True):
        slope = row["roof"] in LEVELS
        for measured, peak in ((False, row["peak"]), (True, row["measured_peak"])):
            height = (peak or 0.0) / (1e3 if slope else 1.0)  # GB/s → TB/s
            known = found.get((row["roof"], measured))
            if height > (known.height if known else 0.0):
                found[row["roof"], measured] = Roof(row["roof"], height, slope, measured)
    return list(found.values())
