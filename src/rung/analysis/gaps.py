"""When and why is the GPU idle? Each time in which a device ran nothing, and the causes of all of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.frames import frames, place, user_frames
from rung.analysis.intervals import union
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.stabbing import THREAD, at_rows, holding, open_at
from rung.analysis.waiting import all_waits
from rung.trace.marks import END_OF_STEP
from rung.trace.table import Trace

DRY: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "ts": pl.Int64(),
    "end": pl.Int64(),
    "event": pl.Int64(),
}
DISPATCH_NS = (
    10_000  # what the GPU itself may need between two kernels that are both queued: 1 to 2 us, with a barrier more
)
# Causes of gaps that a launch ended which came after the GPU ran dry.
LATE = ("data loading", "sync", "profiler", "host")
_LOADING = r"DataLoader|(^|/)torch/utils/data/"
STALLED_NS = 100_000  # work begins 5 to 20 us after its launch on an idle GPU: this late, it waits for something else


@once
def dry_times(trace: Trace) -> pl.DataFrame:
    """One row a gap between the GPU events of a device, over all its streams: `ts` to `end` in ns.

    event: the row in `origins` of the event that ended it; of several that begin then, the longest.
    launched, launch, graph, linked: of that event, as in `origins`.
    late: the host launched it only after the device had run dry, and it began soon after that. Not so where most of the
        gap, and 100 us, lie behind the launch: it waited in its queue for an event or another stream.
    """
    found = [pl.DataFrame(schema=DRY)]
    events = origins(trace).select("rank", "device", "ts", "end").with_row_index("event")
    for (rank, device), part in events.group_by("rank", "device", maintain_order=True):
        part = part.sort("ts", "end", descending=[False, True], maintain_order=True)
        start = part["ts"].to_numpy()
        low, high = union(start, part["end"].to_numpy())
        resumed = np.searchsorted(start, low[1:])
        rows = {"ts": high[:-1], "end": low[1:], "event": part["event"].gather(resumed).cast(pl.Int64)}
        frame = pl.DataFrame(rows).with_columns(rank=pl.lit(rank, pl.Int32), device=pl.lit(device, pl.Int32))
        found.append(frame.select(pl.col(name).cast(dtype) for name, dtype in DRY.items()))
    dry = pl.concat(found)
    ended = origins(trace).select("launched", "launch", "graph", "linked")[dry["event"]]
    returned = host_calls(trace)["end"].gather(ended["launch"])
    queued = pl.col("end") - pl.max_horizontal(returned, "ts")
    stalled = (queued >= STALLED_NS) & (queued > (pl.col("end") - pl.col("ts")) / 2)
    return dry.hstack(ended).with_columns(late=((pl.col("launched") >= pl.col("ts")) & ~stalled).fill_null(False))


def gaps(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a gap between the GPU events of a device, over all its streams, the longest first.

    The causes:

    - data loading: the host fetched data when the GPU ran dry.
    - sync: the host was in a call that waits for the GPU, so nothing could be queued.
    - profiler: it was in such a call of the profiler's, at the end of a step or when the recording starts or stops.
    - host: the next work was launched only after the GPU had run dry.
    - launch latency: the next work was launched just before the GPU ran dry. It began as long after its launch as work does on an idle
      GPU.
    - inside a graph: between two kernels of one replay.
    - dispatch: the next work was queued, and started within 10 us.
    - queued: the next work was queued, or launched meanwhile, and started much later: a copy was set up, or it waited for an event or
      another stream.
    - launched outside: the launch is not in the trace.
    - no launches: the trace has none at all.

    gap_ns: its length. The gaps add up to idle_ns of `timeline`.
    cause: one of those above.
    during: the operator or runtime call of the launching thread in the middle of the wait; for sync and profiler, the call.
    next: the event that ended the gap.
    ts, end: on the trace's clock.
    """
    table = caused(trace)
    return table.sort("gap_ns", "ts", "rank", "device", descending=[True, False, False, False]).select(
        "rank", "device", "gap_ns", "cause", "during", "call_site", "next", "ts", "end"
    )


@once
def caused(trace: Trace) -> pl.DataFrame:
    """The rows of `gaps`, by device and in time order."""
    calls, events, dry = host_calls(trace), origins(trace), dry_times(trace)
    before = _previous(events, dry)
    table = dry.drop("event").with_columns(
        gap_ns=pl.col("end") - pl.col("ts"), next=events["name"].gather(dry["event"])
    )
    thread = calls.select(pl.col("pid", "tid").gather(table["launch"]))
    # From the GPU running dry to the launch; where the launch came before, the whole gap.
    until = pl.when("late").then(pl.min_horizontal("launched", "end")).otherwise("end")
    waits = table.hstack(thread).with_columns(at=pl.col("ts") + (until - pl.col("ts")) // 2)
    # A step is not what the host did, but when.
    doing = calls.select(*THREAD, "ts", "end", "name").filter(holding(calls["ts"], calls["end"], waits["at"].sort()))
    doing = doing.filter(~pl.col("name").str.starts_with("ProfilerStep#"), pl.col("name") != END_OF_STEP)
    middle = open_at(doing, waits)
    program = user_frames(trace, waits["at"])
    line = open_at(program, waits)
    blocking, is_loader = all_waits(trace), pl.col("name").str.contains(_LOADING)
    blocked = open_at(blocking.select(*THREAD, "ts", "end"), waits.with_columns(at="ts"))
    loaders = pl.concat(
        [spans.select(*THREAD, "ts", "end") for spans in (frames(trace, is_loader), calls.filter(is_loader))]
    )
    loading = pl.Series(open_at(loaders, waits)) >= 0
    within = waits["graph"] & (before == waits["launch"]).fill_null(False)
    taken = pl.col("end") - pl.col("launched")
    latency = waits.filter("late").select(taken.median()).item()
    queued = pl.when(pl.col("gap_ns") < DISPATCH_NS).then(pl.lit("dispatch")).otherwise(pl.lit("queued"))
    outside = "launched outside" if events["linked"].any() else "no launches"
    cause = (
        pl.when(~pl.col("linked")).then(pl.lit(outside))
        .when(pl.col("late") & loading).then(pl.lit("data loading"))
        .when(pl.col("late") & at_rows(blocking["profiler"], blocked).fill_null(False)).then(pl.lit("profiler"))
        .when(pl.col("late") & (pl.Series(blocked) >= 0)).then(pl.lit("sync"))
        .when("late").then(pl.lit("host"))
        .when(within).then(pl.lit("inside a graph"))
        .when(taken <= (latency or 0) * 1.5).then(pl.lit("launch latency"))
        .otherwise(queued)
    )  # fmt: skip
    return waits.with_columns(cause=cause).select(
        "rank", "device", "gap_ns", "cause",
        pl.when("late").then(
            pl.when(pl.col("cause").is_in(["sync", "profiler"])).then(at_rows(blocking["name"], blocked)).otherwise(at_rows(doing["name"], middle))
        ).alias("during"),
        pl.when("late").then(at_rows(program["name"], line)).alias("call_site"),
        "next", "ts", "end",
    ).with_columns(place())  # fmt: skip


def _previous(events: pl.DataFrame, dry: pl.DataFrame) -> pl.Series:
    """The launch of the event that ended when each gap began; of several, any."""
    ended = events.select("rank", "device", "launch", ts="end").unique(["rank", "device", "ts"], keep="last")
    return dry.select("rank", "device", "ts").join(
        ended, on=["rank", "device", "ts"], how="left", nulls_equal=True, maintain_order="left"
    )["launch"]


def idle(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a cause and what the host did meanwhile, over all ranks and devices, most idle time first.

    time_ns: idle time per step. The rows add up to idle_ns of `timeline`.
    share: of all idle time.
    count: gaps per step.
    cause, during: as in `gaps`.
    longest_ns: the longest gap.
    """
    gap = pl.col("gap_ns")
    return (
        caused(trace)
        .group_by("cause", "during", "call_site")
        .agg(count=pl.len() / steps, total=gap.sum(), longest_ns=gap.max())
        .sort("total", "cause", "during", "call_site", descending=[True, False, False, False], nulls_last=True)
        .select(
            (pl.col("total") / steps).round().cast(pl.Int64).alias("time_ns"),
            (pl.col("total") / pl.col("total").sum()).alias("share"), "count", "cause", "during", "call_site", "longest_ns",
        )
    )  # fmt: skip
