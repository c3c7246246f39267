"""All that a page draws of a trace, worked out: the tables, the lanes, the curves with no more points than a picture can show, and the trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from rung.analysis.analyses import ANALYSES, table
from rung.analysis.icicle import BY, Icicle, icicle
from rung.analysis.lanes import Lanes, lanes
from rung.analysis.per_step import of_steps
from rung.analysis.roofline import peaks_of_trace
from rung.analysis.steps import step_spans
from rung.hardware.peaks import Peaks
from rung.trace.counter_tracks import tracks
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


@dataclass(frozen=True)
class Step:
    """One recorded step as lanes, and the roofs of all recorded ones. number: which of `steps` it is, from 1; 0 where the trace marks none,
    and the lanes are of all of it."""

    lanes: Lanes
    roofs: Roofs
    number: int
    steps: int


def one_step(trace: Trace) -> Step:
    """The step in the middle: the first may have what comes once."""
    known = step_spans(trace)["step"].unique().sort().to_list()
    steps = max(1, len(known))
    if not known:
        return Step(lanes(trace), roofs(trace), 0, steps)
    middle = len(known) // 2
    return Step(lanes(of_steps(trace, {known[middle]})), roofs(trace, steps=steps), middle + 1, steps)


def side_by_side(several: Sequence[Lanes]) -> Lanes:
    """The lanes of several traces, each from its own start, as if each were a rank: 0 for the first."""
    placed, slices, kinds = [], [], []
    first_lane = first_kind = 0
    together: Counter[str] = Counter()
    hidden: Counter[str] = Counter()
    shorter: dict[str, int] = {}
    for rank, one in enumerate(several):
        placed.append(one.lanes.with_columns(rank=pl.lit(rank, pl.Int32), lane=pl.col("lane") + first_lane))
        slices.append(one.slices.with_columns(lane=pl.col("lane") + first_lane, kind=pl.col("kind") + first_kind))
        kinds.append(one.kinds)
        first_lane, first_kind = first_lane + one.lanes.height, first_kind + one.kinds.height
        together += Counter(events=one.events, together=one.together)
        hidden += Counter(one.hidden)
        shorter |= {group: max(ns, shorter.get(group, 0)) for group, ns in one.shorter_ns.items()}
    return Lanes(
        lanes=pl.concat(placed),
        slices=pl.concat(slices),
        kinds=pl.concat(kinds),
        origin_ns=0,
        span_ns=max(one.span_ns for one in several),
        events=together["events"],
        together=together["together"],
        shorter_ns=shorter,
        hidden=dict(hidden),
    )


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


MOST = 1500  # points of a curve
_CURVE = ("name", "unit", "rank", "device")


def curves(trace: Trace, *, most: int = MOST) -> pl.DataFrame:
    """The curves of `counter_tracks.tracks`, columns as in CURVES, each of about `most` points: where it has more, of each stretch of
    time the highest value and the last one, so that no peak is lost.
    """
    every = tracks(trace)
    if every.is_empty():
        return every
    parts = [_thinned(part, most) for part in every.partition_by(_CURVE, maintain_order=True)]
    return pl.concat(parts)


def _thinned(curve: pl.DataFrame, most: int) -> pl.DataFrame:
    if curve.height <= most:
        return curve
    ordered = curve.sort("ts", maintain_order=True).with_row_index("row")
    first, last = int(ordered["ts"][0]), int(ordered["ts"][-1])
    stretch = (pl.col("ts") - first) // max(1, (last - first) // (most // 2) + 1)
    rows = ordered.group_by(stretch).agg(
        highest=pl.col("row").gather(pl.col("value").arg_max()), last=pl.col("row").last()
    )
    kept = pl.concat([rows["highest"].explode(), rows["last"]]).unique().sort()
    return ordered.filter(pl.col("row").is_in(kept.implode())).drop("row")
