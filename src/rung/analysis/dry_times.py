"""The times in which a device ran nothing, what ended each, and whether that was late for the host's sake."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls
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
STALLED_NS = 100_000  # work begins 5 to 20 us after its launch on an idle GPU: this late, it waits for something else


@once
def dry_times(trace: Trace) -> pl.DataFrame:
    """One row a gap between the GPU events of a device, over all its streams: `ts` to `end` in ns.

    event: the row in `origins` of the event that ended it; of several that begin then, the longest.
    launched, launch, graph, linked: of that event, as in `origins`.
    late: the host launched it only after the device had run dry, and it began soon after that. Not so where most of the
        gap, and 100 us, lie behind the launch: it waited in its queue for an event or another stream.
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
    dry = pl.concat(found)
    ended = origins(trace).select("launched", "launch", "graph", "linked")[dry["event"]]
    returned = host_calls(trace)["end"].gather(ended["launch"])
    queued = pl.col("end") - pl.max_horizontal(returned, "ts")
    stalled = (queued >= STALLED_NS) & (queued > (pl.col("end") - pl.col("ts")) / 2)
    return dry.hstack(ended).with_columns(late=((pl.col("launched") >= pl.col("ts")) & ~stalled).fill_null(False))
