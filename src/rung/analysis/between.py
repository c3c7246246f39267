"""What each rank computed between its collectives: enough to tell why it was late, in a few numbers for each stretch of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.collective_calls import collective_calls
from rung.analysis.intervals import Ints, union
from rung.analysis.nesting import outermost
from rung.analysis.once import once
from rung.analysis.origins import op_column, origins
from rung.analysis.steps import step_spans
from rung.trace.table import Trace

# The time of a rank is cut where a collective begins or ends, and where a step begins on the host.
STRETCHES: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "begin": pl.Int64(),  # ns
    "end": pl.Int64(),
    "idle_ns": pl.Int64(),  # nothing is computed
    "lead_ns": pl.Int64(),  # of it before the first work; all of it where there is none
    "trail_ns": pl.Int64(),  # after the last
    "gap_ns": pl.Int64(),  # the longest in the middle
    "first": pl.String(),  # what begins after lead_ns; null where it began before
    "after_gap": pl.String(),  # what ends gap_ns
}
WORK: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "begin": pl.Int64(),  # of the stretch
    "name": pl.String(),  # of the operator, else of the kernel
    "ns": pl.Int64(),  # summed over its events
}


class Did(NamedTuple):
    """ns: the time looked at; idle: how much of it nothing ran; after: what ended the longest such gap, where that is
    half of them; times: ns by name."""

    ns: int
    idle: int
    after: str | None
    times: dict[str, int]


@dataclass(frozen=True)
class Between:
    """stretches: columns as in STRETCHES, by rank and time. work: columns as in WORK, in the same order."""

    stretches: pl.DataFrame
    work: pl.DataFrame

    def did(self, rank: int, begin: int, end: int) -> Did:
        """What a rank computed from `begin` to `end`, which are two cuts of its time, in ns."""
        inside = (pl.col("rank") == rank, pl.col("begin") >= begin, pl.col("begin") < end)
        rows = self.stretches.filter(*inside).to_dicts()
        work = self.work.filter(*inside).group_by("name", maintain_order=True).agg(pl.col("ns").sum())
        idle, (gap, after) = sum(row["idle_ns"] for row in rows), _longest(rows)
        return Did(end - begin, idle, after if gap >= idle / 2 else None, dict(work.iter_rows()))


@once
def between(trace: Trace) -> Between:
    """On traces without GPUs the operators of the host stand for the GPU's work."""
    calls, spans, work = collective_calls(trace), step_spans(trace), _work(trace)
    stretches, names = [pl.DataFrame(schema=STRETCHES)], [pl.DataFrame(schema=WORK)]
    for (rank,), own in calls.group_by("rank", maintain_order=True):
        of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
        cuts = np.unique(np.r_[own["ts"].to_numpy(), own["end"].to_numpy(), spans.filter(of_rank)["ts"].to_numpy()])
        if cuts.size > 1:
            found, by_name = _of_rank(work.filter(of_rank), cuts)
            stretches.append(found.select(pl.lit(rank, pl.Int32).alias("rank"), pl.all()))
            names.append(by_name.select(pl.lit(rank, pl.Int32).alias("rank"), pl.all()))
    return Between(pl.concat(stretches), pl.concat(names))


def _work(trace: Trace) -> pl.DataFrame:
    """What computes: `rank`, `name` (operator, else kernel), `ts`, `end`; GPU work, or without any the top operators."""
    gpu = origins(trace)
    if gpu.height:
        gpu = gpu.with_columns(name=op_column(trace, "name").fill_null(gpu["name"]))
        return gpu.filter(pl.col("role") != "communication").select("rank", "name", "ts", "end").sort("ts")
    calls = host_calls(trace)
    is_op = (calls["kind"] == "cpu_op").to_numpy()
    top = (outermost(calls["caller"].to_numpy(), is_op) == np.arange(calls.height)) & is_op
    return calls.filter(pl.Series(top)).select("rank", "name", "ts", "end").sort("ts")


def _of_rank(work: pl.DataFrame, cuts: Ints) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The stretches between the cuts and the work in them, of one rank. work: by `ts`."""
    number = cuts.size - 1
    ts, end = work["ts"].to_numpy(), work["end"].to_numpy()
    row, cell, low, high = _divided(ts, end, cuts)
    by_name = (
        pl.DataFrame({"cell": cell, "name": work["name"].gather(row), "ns": high - low})
        .group_by("cell", "name", maintain_order=True)
        .agg(pl.col("ns").sum())
        .sort("cell", maintain_order=True)
    )
    by_name = by_name.select(pl.Series("begin", cuts[by_name["cell"].to_numpy()]), "name", "ns")
    _, cell, low, high = _divided(*union(ts, end), cuts)
    busy = np.bincount(cell, weights=high - low, minlength=number).astype(np.int64)
    width = np.diff(cuts)
    some = np.bincount(cell, minlength=number) > 0
    first, last = np.searchsorted(cell, np.arange(number)), np.searchsorted(cell, np.arange(number), side="right") - 1
    lead, trail, begun = width.copy(), width.copy(), np.zeros(number, dtype=np.int64)
    begun[some] = low[first[some]]
    lead[some], trail[some] = begun[some] - cuts[:-1][some], cuts[1:][some] - high[last[some]]
    gap, resumed = _inner_gaps(cell, low, high, number)

    def begins(at: Ints, known: np.ndarray) -> pl.Series:
        """The name of the work that begins at each time."""
        place = np.searchsorted(ts, at).clip(0, max(0, ts.size - 1))
        here = known & (ts[place] == at) if ts.size else np.zeros(at.size, dtype=bool)
        places = pl.Series(place)
        return work["name"].gather(pl.select(pl.when(pl.Series(here)).then(places)).to_series())

    stretches = pl.DataFrame(
        {
            "begin": cuts[:-1],
            "end": cuts[1:],
            "idle_ns": width - busy,
            "lead_ns": lead,
            "trail_ns": trail,
            "gap_ns": gap,
            "first": begins(begun, some),
            "after_gap": begins(resumed, gap > 0),
        }
    )
    return stretches, by_name


def _divided(ts: Ints, end: Ints, cuts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Intervals, ascending by start, divided at the cuts: of each piece the interval that it is of, its stretch, its start and its
    end; by stretch where the intervals are disjoint."""
    first = np.searchsorted(cuts, ts, side="right") - 1
    last = np.searchsorted(cuts, end, side="left") - 1
    first, last = np.maximum(first, 0), np.minimum(last, cuts.size - 2)
    pieces = np.maximum(last - first + 1, 0)
    row = np.repeat(np.arange(ts.size), pieces)
    cell = np.repeat(first - np.r_[0, np.cumsum(pieces)[:-1]], pieces) + np.arange(row.size) if ts.size else row
    return row, cell, np.maximum(ts[row], cuts[cell]), np.minimum(end[row], cuts[cell + 1])


def _inner_gaps(cell: Ints, low: Ints, high: Ints, number: int) -> tuple[Ints, Ints]:
    """The longest gap between two intervals of each stretch, and when it ends; of equals the later one."""
    gap, resumed = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    same = cell[1:] == cell[:-1]
    of, ends, wide = cell[1:][same], low[1:][same], (low[1:] - high[:-1])[same]
    order = np.lexsort((ends, wide))
    gap[of[order]], resumed[of[order]] = wide[order], ends[order]  # the last one that is written stays
    return gap, resumed


def _longest(rows: list[dict[str, Any]]) -> tuple[int, str | None]:
    """The longest time in which nothing is computed in these stretches, one after the other, and what ends it; of equals the later."""
    found: tuple[int, str | None] = (0, None)
    for gap in _gaps(rows):
        found = gap if gap[0] >= found[0] else found
    return found


def _gaps(rows: list[dict[str, Any]]) -> Iterator[tuple[int, str | None]]:
    open_ns = 0  # of a gap that goes on into the next stretch
    for row in rows:
        open_ns += row["lead_ns"]
        if row["lead_ns"] < row["end"] - row["begin"]:
            yield open_ns, row["first"]
            yield row["gap_ns"], row["after_gap"]
            open_ns = row["trail_ns"]
    yield open_ns, None
