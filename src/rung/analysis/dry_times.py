"""The times in which a device ran nothing, and what ended each."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.intervals import union
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "ts": pl.Int64(),
    "end": pl.Int64(),
    "event": pl.Int64(),
}


@once
def dry_times(trace: Trace) -> pl.DataFrame:
    """One row a gap between the GPU events of a device, over all its streams: `ts` to `end` in ns.

    event: the row in `origins` of the event that ended it; of several that begin then, the longest.
    """
    found = [pl.DataFrame(schema=SCHEMA)]
    events = origins(trace).select("rank", "device", "ts", "end").with_row_index("event")
    for (rank, device), part in events.group_by("rank", "device", maintain_order=True):
        part = part.sort("ts", "end", descending=[False, True], maintain_order=True)
        start = part["ts"].to_numpy()
        low, high = union(start, part["end"].to_numpy())
        resumed = np.searchsorted(start, low[1:])
        rows = {"ts": high[:-1], "end": low[1:], "event": part["event"].gather(resumed).cast(pl.Int64)}
        frame = pl.DataFrame(rows).with_columns(rank=pl.lit(rank, pl.Int32), device=pl.lit(device, pl.Int32))
        found.append(frame.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()))
    return pl.concat(found)
