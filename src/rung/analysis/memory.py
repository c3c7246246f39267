"""How much memory was used, and what held it at the peak?"""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.frames import place, user_frames
from rung.analysis.nesting import outermost
from rung.analysis.stabbing import THREAD, at_rows, open_at
from rung.trace.counter_tracks import memory_in_use
from rung.trace.table import Trace

_ON = ("rank", "device")
BEFORE = "(allocated before the recording)"


def memory(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a rank and device, of what PyTorch's allocators recorded (profile_memory).

    device: the GPU; null is host memory.
    peak_bytes: the most that tensors held at once.
    reserved_bytes: the most that the allocator held.
    unused_share: of what was reserved at that peak, what no tensor used. High near the limit of the device means fragmentation.
    start_bytes, end_bytes: held by tensors at the first and the last record.
    allocations: made per step.
    allocated_bytes: made per step.
    largest_bytes: the largest allocation.
    at: when the peak was, on the trace's clock.
    """
    size, held = pl.col("bytes"), pl.col("allocated")
    ordered = trace.memory.sort("ts", maintain_order=True)
    return (
        ordered.group_by(_ON, maintain_order=True)
        .agg(
            peak_bytes=held.max(),
            reserved_bytes=pl.col("reserved").max(),
            unused_share=1.0 - held.max() / pl.col("reserved").gather(held.arg_max()).first(),
            start_bytes=(held - size).first(),
            end_bytes=held.last(),
            allocations=(size > 0).sum() / steps,
            allocated_bytes=(size.filter(size > 0).sum() / steps).round().cast(pl.Int64),
            largest_bytes=size.max(),
            at=pl.col("ts").gather(held.arg_max()).first(),
        )
        .with_columns(pl.col("at").cast(pl.Int64))  # of no rows polars knows no type
        .sort(_ON, nulls_last=True)
    )


def memory_timeline(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a change.

    If PyTorch's allocators recorded nothing, allocated_bytes is the sum of the driver's allocations and releases in the trace, from zero at
    its start, and reserved_bytes is null.

    ts: when, on the trace's clock.
    allocated_bytes: held by tensors.
    reserved_bytes: held by the allocator.
    """
    schema = {"rank": pl.Int32(), "device": pl.Int32(), "ts": pl.Int64(), "allocated_bytes": pl.Int64(), "reserved_bytes": pl.Int64()}  # fmt: skip
    if trace.memory.height:
        ordered = trace.memory.sort("ts", maintain_order=True)
        return ordered.select(*_ON, "ts", allocated_bytes="allocated", reserved_bytes="reserved")
    driver = memory_in_use(trace).select(
        *_ON, "ts", allocated_bytes=pl.col("value").cast(pl.Int64), reserved_bytes=None
    )
    return driver.cast(schema)  # type: ignore[arg-type]


def memory_peak(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """What was alive when a device's tensors held most: one row an operator and call site, the most bytes first.

    What was allocated before the recording has a row, so that the rows of a device add up to peak_bytes in `memory`.

    op: the outermost operator in which it was allocated.
    tensors: how many.
    held_bytes: their size.
    share: of peak_bytes.
    """
    records = trace.memory.filter(pl.col("device").is_not_null(), pl.col("allocated").is_not_null()).sort(
        "ts", maintain_order=True
    )
    peaks = records.group_by(_ON).agg(
        peak=pl.col("allocated").max(), moment=pl.col("allocated").arg_max(), at=pl.col("ts").gather(pl.col("allocated").arg_max()).first()
    )  # fmt: skip
    numbered = (
        records.with_columns(order=pl.int_range(pl.len()).over(_ON))
        .with_columns(gone=pl.col("order").shift(-1).over(*_ON, "address"))
        .join(peaks, on=_ON, nulls_equal=True, maintain_order="left")
    )
    order, gone, moment = pl.col("order"), pl.col("gone"), pl.col("moment")
    alive = numbered.filter(pl.col("bytes") > 0, order <= moment, gone.is_null() | (gone > moment))
    op, call_site = _makers(trace, alive)
    made = alive.with_columns(op=pl.coalesce(op, pl.lit("(no operator)")), call_site=call_site).with_columns(place())
    before = peaks.join(made.group_by(_ON).agg(pl.col("bytes").sum()), on=_ON, how="left", nulls_equal=True).select(
        *_ON, "peak", op=pl.lit(BEFORE), call_site=pl.lit(None, pl.String), tensors=pl.lit(None, pl.UInt32),
        bytes=pl.col("peak") - pl.col("bytes").fill_null(0),
    )  # fmt: skip
    kinds = made.group_by(*_ON, "peak", "op", "call_site").agg(tensors=pl.len(), bytes=pl.col("bytes").sum())
    both = pl.concat([kinds, before.filter(pl.col("bytes") != 0).select(kinds.columns)])
    return both.sort(*_ON, "bytes", "op", "call_site", descending=[False, False, True, False, False]).select(
        *_ON, "op", "tensors", pl.col("bytes").alias("held_bytes"), (pl.col("bytes") / pl.col("peak")).alias("share"), "call_site"
    )  # fmt: skip


def _makers(trace: Trace, records: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The outermost operator and the innermost frame of the user's in which each record was made."""
    calls, moments = host_calls(trace), records.select(*THREAD, at="ts")
    inside = open_at(calls.select(*THREAD, "ts", "end"), moments)
    top = outermost(calls["caller"].to_numpy(), (calls["kind"] == "cpu_op").to_numpy())
    of_top = np.where(inside >= 0, top[np.maximum(inside, 0)], -1) if top.size else inside
    program = user_frames(trace, moments["at"])
    return at_rows(calls["name"], of_top), at_rows(program["name"], open_at(program, moments))
