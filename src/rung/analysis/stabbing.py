"""What was open at some moments: the innermost interval around each point in time."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.intervals import Ints
from rung.analysis.nesting import Mask, callers

THREAD = ("rank", "pid", "tid")
# A number for each thread, to tell them apart: by the codes of its texts, which are in no order.
THREAD_NUMBER = pl.struct("rank", pl.col("pid", "tid").to_physical()).rank("dense").cast(pl.Int64)


def open_at(spans: pl.DataFrame, moments: pl.DataFrame) -> Ints:
    """For each moment (`rank`, `pid`, `tid`, `at` in ns) the row of the innermost of the spans (`ts`, `end`) open on
    that thread then, -1 where none is. A span is open from its start to before its end.
    """
    if spans.is_empty() or moments.is_empty():
        return np.full(moments.height, -1, dtype=np.int64)
    holds = holding(spans["ts"], spans["end"], moments["at"].sort())
    rows = np.flatnonzero(holds)
    spans = spans.filter(holds)
    if spans.is_empty():
        return np.full(moments.height, -1, dtype=np.int64)
    threads = pl.concat([spans.select(THREAD), moments.select(THREAD)]).select(THREAD_NUMBER)
    of_span, of_moment = np.split(threads.to_series().to_numpy(), [spans.height])
    start, end, at = spans["ts"].to_numpy(), spans["end"].to_numpy(), moments["at"].to_numpy()
    caller = callers(start, end, of_span)
    order = np.lexsort((-end, start, of_span))
    # Moments among the starts: the last span of the thread that has begun is the innermost, or lies in it and is over.
    both = np.lexsort(
        (np.r_[np.zeros(start.size), np.ones(at.size)], np.r_[start[order], at], np.r_[of_span[order], of_moment])
    )
    is_span = both < start.size
    begun = np.maximum.accumulate(np.where(is_span, both, -1))
    found = np.full(at.size, -1, dtype=np.int64)
    found[both[~is_span] - start.size] = begun[~is_span]
    row = np.where(found >= 0, order[np.maximum(found, 0)], -1)
    row = np.where((row >= 0) & (of_span[np.maximum(row, 0)] == of_moment), row, -1)
    while True:
        over = (row >= 0) & (end[np.maximum(row, 0)] <= at)
        if not over.any():
            return np.where(row >= 0, rows[np.maximum(row, 0)], -1)
        row = np.where(over, caller[np.maximum(row, 0)], row)


def holding(start: pl.Series, end: pl.Series, moments: pl.Series) -> Mask:
    """Which spans are open at any of some sorted moments, on whatever thread: most of a long recording hold none of a few."""
    at = moments.to_numpy()
    if at.size == 0:
        return np.zeros(start.len(), dtype=bool)
    following = np.searchsorted(at, start.to_numpy())
    found: Mask = (following < at.size) & (at[np.minimum(following, at.size - 1)] < end.to_numpy())
    return found


def at_rows(values: pl.Series, rows: Ints | pl.Series) -> pl.Series:
    """The values at these rows, null where a row is -1."""
    index = pl.Series(rows, dtype=pl.Int64)
    return values.gather(pl.select(pl.when(index >= 0).then(index)).to_series())
