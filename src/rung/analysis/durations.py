"""How long are the GPU events: a histogram."""

from __future__ import annotations

import polars as pl

from rung.analysis.gpu_events import gpu_events
from rung.trace.table import Trace

EDGES_US = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)


def durations(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a range of durations, of all kernels, copies and memsets, over all ranks and devices.

    from_ns to below_ns (null: without end). count, time_ns: a step. count_share: of the events; share: of the
    durations. Kernels below 10 us do not hide a launch.
    """
    edges = pl.DataFrame({"from_ns": [us * 1000 for us in EDGES_US]}, schema={"from_ns": pl.Int64})
    ranges = edges.with_columns(below_ns=pl.col("from_ns").shift(-1))
    events = gpu_events(trace).select("dur").sort("dur").join_asof(edges, left_on="dur", right_on="from_ns")
    sums = events.group_by("from_ns").agg(count=pl.len(), time=pl.col("dur").sum())
    table = ranges.join(sums, on="from_ns", how="left", maintain_order="left").with_columns(
        pl.col("count", "time").fill_null(0)
    )
    return table.select(
        "from_ns", "below_ns", pl.col("count") / steps, (pl.col("time") / steps).round().cast(pl.Int64).alias("time_ns"),
        (pl.col("count") / pl.col("count").sum()).alias("count_share"), (pl.col("time") / pl.col("time").sum()).alias("share"),
    )  # fmt: skip
