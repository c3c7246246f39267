"""How much launched work waits for the GPU, over time?"""

from __future__ import annotations

import polars as pl

from rung.trace.counter_tracks import queue_length
from rung.trace.table import Trace


def queue(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a change of a device's queue: `ts` in ns on the trace's clock, `length` in kernels from then on.

    A kernel waits from the start of its launch call to its own start; those of a graph all from its launch.
    """
    return queue_length(trace).select("rank", "device", "ts", length=pl.col("value").cast(pl.Int64))
