"""Where does the host stop and wait for the GPU?"""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.frames import place, user_frames
from rung.analysis.spending import spending
from rung.analysis.stabbing import THREAD, at_rows, open_at
from rung.analysis.waiting import host_waits
from rung.trace.table import Trace


def syncs(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a kind of call that waits for the GPU and who made it, most host time first.

    call: the runtime call. why: "synchronize", or "blocking copy" for one that returned only when its copy had ended.
    op: the innermost operator around it, as in aten::item; empty where none is. call_site: the innermost function of
    the user's program and libraries around it, where stacks were recorded. count, time_ns: a step. share: of all
    these calls.
    """
    calls, waits = host_calls(trace), host_waits(trace)
    frames = user_frames(trace, waits["ts"])
    line = open_at(frames, waits.select(*THREAD, at="ts"))
    named = waits.select(
        "dur", "why", call="name",
        op=at_rows(calls["name"], waits["op"]),
        call_site=at_rows(frames["name"], line),
    ).with_columns(place())  # fmt: skip
    return spending(named, ["call", "why", "op", "call_site"], steps).select(
        "time_ns", "share", "count", "call", "op", "call_site", "why", "mean_ns", "median_ns", "max_ns", "min_ns", "std_ns"
    )  # fmt: skip
