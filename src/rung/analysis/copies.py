"""What is copied, in which direction, and how fast?"""

from __future__ import annotations

import polars as pl

from rung.analysis.classifier import copy_direction
from rung.analysis.origins import origins
from rung.analysis.waiting import host_waits
from rung.trace.table import Trace

_ENDS = r"\(([^()]*->[^()]*)\)"


def copies(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a direction of copies and memsets, over all ranks and devices, most time first.

    direction: HtoD, DtoH, DtoD, memset. ends: as the profiler says, as in Pageable -> Device. count, moved_bytes,
    time_ns: a step. gb_per_s: bytes by time, of the copies whose size was recorded (10^9 bytes a second): compare it
    with the link, 25 GB/s for PCIe 4 x16, 50 for PCIe 5; pageable memory reaches a fraction. share: of the durations
    of all GPU events. mean_bytes: of one. blocking: those a step for which the host waited.
    """
    events = origins(trace)
    total = events["dur"].sum()
    waits = host_waits(trace)["position"]
    moves = events.filter(pl.col("kind") != "kernel")
    names = moves.select("name", "kind").unique()
    ways = names.with_columns(direction=pl.Series([copy_direction(*row) for row in names.rows()], dtype=pl.String))
    moves = moves.join(ways, on=["name", "kind"], maintain_order="left").with_columns(
        ends=pl.col("name").str.extract(_ENDS),
        sized=pl.col("bytes").is_not_null(),
    )
    time, moved = pl.col("dur"), pl.col("bytes")
    return (
        moves.group_by("direction", "ends")
        .agg(
            count=pl.len() / steps,
            moved_bytes=(moved.sum() / steps).round().cast(pl.Int64),
            total=time.sum(),
            gb_per_s=moved.sum() / time.filter("sized").sum().cast(pl.Float64),
            share=time.sum() / total,
            mean_bytes=moved.mean().round().cast(pl.Int64),
            blocking=pl.col("launch").is_in(waits.implode()).sum() / steps,
        )
        .sort("total", "direction", "ends", descending=[True, False, False], nulls_last=True)
        .select(
            "direction", "ends", "count", "moved_bytes", (pl.col("total") / steps).round().cast(pl.Int64).alias("time_ns"),
            pl.when(pl.col("gb_per_s").is_finite()).then("gb_per_s"), "share", "mean_bytes", "blocking",
        )
    )  # fmt: skip
