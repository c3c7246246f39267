"""What does each stream wait for?"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rung.analysis.gpu_events import gpu_events
from rung.analysis.intervals import Ints, union
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "stream": pl.Int64(),
    "events": pl.Float64(),
    "total_ns": pl.Int64(),
    "busy_ns": pl.Int64(),
    "idle_ns": pl.Int64(),
    "collective_ns": pl.Int64(),
    "other_stream_ns": pl.Int64(),
    "nothing_ns": pl.Int64(),
}


def streams(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a stream of a device, from its first event to the end of its last.

    busy and idle add up to total, and the last three columns to idle, up to the rounding of a step.

    stream: its number.
    events: GPU events per step.
    total_ns: from its first event to the end of its last, per step.
    busy_ns: it ran something, per step.
    idle_ns: it ran nothing, per step.
    collective_ns: of that, another stream of the device ran a collective and none anything else.
    other_stream_ns: of that, another stream computed or copied.
    nothing_ns: of that, the whole device was idle (`idle` says why).
    """
    rows: list[dict[str, Any]] = []
    for (rank, device), events in gpu_events(trace).group_by("rank", "device", maintain_order=True):
        start, end = events["ts"].to_numpy(), events["end"].to_numpy()
        talking = (events["role"] == "communication").to_numpy()
        stream = events["stream"].fill_null(-1).to_numpy()
        for number in np.unique(stream).tolist():
            own = stream == number
            low, high = int(start[own].min()), int(end[own].max())

            def time(chosen: np.ndarray, low: int = low, high: int = high, start: Ints = start, end: Ints = end) -> int:
                first, last = union(np.clip(start[chosen], low, high), np.clip(end[chosen], low, high))
                return int((last - first).sum())

            busy, working, any_event = time(own), time(own | ~talking), time(np.ones(start.size, dtype=bool))
            times = {
                "total_ns": high - low,
                "busy_ns": busy,
                "idle_ns": high - low - busy,
                "other_stream_ns": working - busy,
                "collective_ns": any_event - working,
                "nothing_ns": high - low - any_event,
            }
            rows.append(
                {
                    "rank": rank,
                    "device": device,
                    "stream": None if number < 0 else number,
                    "events": int(own.sum()) / steps,
                }
                | {name: round(ns / steps) for name, ns in times.items()}
            )
    return pl.DataFrame(rows, schema=SCHEMA).sort("rank", "device", "busy_ns", descending=[False, False, True])
