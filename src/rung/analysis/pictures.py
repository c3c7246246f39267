"""All that a page draws of a trace, worked out: the tables, the lanes, the curves and the trees."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rung.analysis.analyses import ANALYSES, table
from rung.analysis.curves import curves
from rung.analysis.icicle import BY, Icicle, icicle
from rung.analysis.lanes import Lanes, lanes
from rung.analysis.roofline import peaks_of_trace
from rung.hardware.peaks import Peaks
from rung.trace.table import Trace

# Analyses without a table on a page: the curves have their figures, or they are as long as the trace.
ONLY_DRAWN = ("queue", "memory_timeline", "dispatch_counters")


@dataclass(frozen=True)
class Pictures:
    """tables: by the name of the analysis. curves: columns as in CURVES. trees: those that the trace says. peaks: of its GPU, where
    they are known. steps: by which tables are divided."""

    tables: dict[str, pl.DataFrame]
    lanes: Lanes
    curves: pl.DataFrame
    trees: list[Icicle]
    peaks: Peaks | None
    steps: int


@dataclass(frozen=True)
class Roofs:
    """table: the analysis `roofline`; peaks: of the trace's GPU, where they are known."""

    table: pl.DataFrame
    peaks: Peaks | None


def roofs(trace: Trace, *, steps: int = 1) -> Roofs:
    return Roofs(table("roofline", trace, steps=steps), peaks_of_trace(trace))


def pictures(trace: Trace, *, steps: int = 1) -> Pictures:
    """Without counters in the trace there are no tables of them."""
    names = [name for name in ANALYSES if name not in ONLY_DRAWN and (trace.counters.height or "counter" not in name)]
    trees = [icicle(trace, by) for by in BY]
    return Pictures(
        tables={name: table(name, trace, steps=steps) for name in names},
        lanes=lanes(trace),
        curves=curves(trace),
        trees=[tree for tree in trees if tree is not None],
        peaks=peaks_of_trace(trace),
        steps=steps,
    )
