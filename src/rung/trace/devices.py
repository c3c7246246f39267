"""The GPU of events that do not name one, where the file leaves no choice."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rung.trace.table import GPU_KINDS, SCHEMA, Trace

_COPIES = ("memcpy", "memset")


def with_devices(trace: Trace) -> Trace:
    """The trace of one file, with a device on the GPU events that can have only one.

    Where no GPU event names a device, all of them get device 0. Where all that name one name the same, copies and memsets without one get it: the
    first rocprof records a device for kernels, but not for copies. Any other event keeps none, and `completeness` counts it.
    """
    on_gpu = pl.col("kind").is_in(GPU_KINDS)
    gpu = trace.events.lazy().filter(on_gpu).select("device").collect()["device"]
    if not gpu.null_count():
        return trace
    named = gpu.drop_nulls().unique().to_list()
    if len(named) > 1:
        return trace
    lacking = on_gpu & pl.col("device").is_null() & (pl.col("kind").is_in(_COPIES) if named else True)
    only = pl.lit(named[0] if named else 0, dtype=SCHEMA["device"])
    return replace(trace, events=trace.events.with_columns(device=pl.when(lacking).then(only).otherwise("device")))
