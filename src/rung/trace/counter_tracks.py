"""Curves over time that follow from what was recorded: kernels waiting, copy bandwidth, memory in use.

Each function gives one row a change: the value holds from `ts` until the next row of the same curve.
Only changes are kept; times are the exact integer ns of the events.
"""

from __future__ import annotations

import polars as pl

from rung.trace.output import launches
from rung.trace.table import CURVES, Trace

SCHEMA = CURVES
_WHERE = ("rank", "device")
# hipFree, cudaFreeAsync, MEMORY_ALLOCATION_FREE, MEMORY_ALLOCATION_VMEM_FREE and the like.
_RELEASE = "(?i)free|release"


def tracks(trace: Trace) -> pl.DataFrame:
    """All curves of a trace, each sorted by time: those that follow from its events, and those recorded beside them."""
    follow = (queue_length, memory_bandwidth, memory_in_use, memory_of_allocator)
    return pl.concat([*(curve(trace) for curve in follow), trace.curves])


def queue_length(trace: Trace) -> pl.DataFrame:
    """Kernels of a device that were launched and have not started.

    A kernel waits from the start of the runtime call that launched it until its own start; not at all where it
    seems to start first, as the clocks of host and GPU may differ by more than the wait. A kernel without a launch
    in the trace never counts. A graph launch adds all its kernels at once.
    """
    events = trace.events.lazy().with_row_index("row")
    waits = (
        launches(trace)
        .lazy()
        .join(events.select("kind", "ts", *_WHERE, gpu="row"), on="gpu")
        .filter(pl.col("kind") == "kernel", pl.col("device").is_not_null())
        .join(events.select(launched="ts", launch="row"), on="launch")
        .filter(pl.col("launched") < pl.col("ts"))
        .collect()
    )
    up = waits.select(*_WHERE, ts=pl.col("launched"), step=pl.lit(1, pl.Int64))
    down = waits.select(*_WHERE, "ts", step=pl.lit(-1, pl.Int64))
    return _levels(pl.concat([up, down]), "kernels queued", "kernels")


def memory_bandwidth(trace: Trace) -> pl.DataFrame:
    """GB/s that the copies of a device move, each at its mean rate; copies that overlap add up.

    Copies without a size or of no duration have no rate and are left out.
    """
    copies = trace.events.filter(
        pl.col("kind") == "memcpy", pl.col("device").is_not_null(), pl.col("bytes") > 0, pl.col("dur") > 0
    ).select(*_WHERE, "ts", end=pl.col("ts") + pl.col("dur"), rate=pl.col("bytes") / pl.col("dur"))
    one = pl.lit(1, pl.Int64)
    steps = pl.concat(
        [
            copies.select(*_WHERE, "ts", step=pl.col("rate"), active=one),
            copies.select(*_WHERE, ts=pl.col("end"), step=-pl.col("rate"), active=-one),
        ]
    )
    level = (
        steps.group_by(*_WHERE, "ts")
        .agg(pl.col("step").sum(), pl.col("active").sum())
        .sort(*_WHERE, "ts")
        .with_columns(
            value=pl.col("step").cum_sum().over(_WHERE),
            active=pl.col("active").cum_sum().over(_WHERE),
        )
        # Sums of rates do not cancel to the last bit; that no copy runs is known exactly.
        .with_columns(value=pl.when(pl.col("active") == 0).then(0.0).otherwise(pl.col("value")))
    )
    return _curve(level, "copy bandwidth", "GB/s")


def memory_in_use(trace: Trace) -> pl.DataFrame:
    """Bytes of device memory, relative to the start of the trace, by its allocation events.

    A release subtracts its bytes; its name says that it is one, or its bytes are negative. Events without a size
    or a device change nothing: rocprofv3 records neither for a release, so there the curve is what was allocated.
    """
    size = pl.col("bytes")
    steps = trace.events.filter(
        pl.col("kind") == "allocation", pl.col("device").is_not_null(), size.is_not_null(), size != 0
    ).select(*_WHERE, "ts", step=pl.when(pl.col("name").str.contains(_RELEASE)).then(-size.abs()).otherwise(size))
    return _levels(steps, "memory in use", "bytes")


def memory_of_allocator(trace: Trace) -> pl.DataFrame:
    """Bytes that PyTorch's allocator says its tensors hold, and that it holds itself, after each of its records.

    Two curves for each device of `trace.memory`, "allocated by tensors" and "reserved by the allocator"; host memory has none.
    """
    records = trace.memory.filter(pl.col("device").is_not_null()).sort(*_WHERE, "ts", maintain_order=True)
    curves = []
    for column, name in (("allocated", "allocated by tensors"), ("reserved", "reserved by the allocator")):
        known = records.filter(pl.col(column).is_not_null()).unique([*_WHERE, "ts"], keep="last", maintain_order=True)
        level = known.select(*_WHERE, "ts", value=column)
        changed = (pl.col("value") != pl.col("value").shift(1).over(_WHERE)).fill_null(True)
        curves.append(_curve(level.filter(changed), name, "bytes"))
    return pl.concat(curves)


def _levels(steps: pl.DataFrame, name: str, unit: str) -> pl.DataFrame:
    level = (
        steps.group_by(*_WHERE, "ts")
        .agg(pl.col("step").sum())
        .filter(pl.col("step") != 0)
        .sort(*_WHERE, "ts")
        .with_columns(value=pl.col("step").cum_sum().over(_WHERE))
    )
    return _curve(level, name, unit)


def _curve(level: pl.DataFrame, name: str, unit: str) -> pl.DataFrame:
    return level.select(pl.lit(name).alias("name"), pl.lit(unit).alias("unit"), *_WHERE, "ts", "value").cast(SCHEMA)  # type: ignore[arg-type]
