"""Does the host keep the GPU busy? Its launches, what it spends on calls of the GPU's runtime, where it waits, and the queue."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls, runtime_calls
from rung.analysis.frames import place, user_frames
from rung.analysis.gaps import dry_times
from rung.analysis.origins import origins
from rung.analysis.runtime_roles import LAUNCHING
from rung.analysis.spending import spending
from rung.analysis.stabbing import THREAD, at_rows, open_at
from rung.analysis.waiting import host_waits
from rung.trace.counter_tracks import queue_length
from rung.trace.table import Trace

SHORT_NS = 10_000  # a launch costs the host 5 to 10 us in eager mode: shorter kernels cannot hide it
_ON = ("rank", "device")


def launches(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a rank and device.

    kernels: GPU events (kernels, copies, memsets) per step.
    launches: the calls that launched them, per step. A graph's launch counts once, and replays many.
    graph_kernels: replayed by graphs, per step.
    latency_median_ns, latency_p90_ns, latency_max_ns: from the start of the launch call to the start of its work, outside of graphs. Long is
        good: the host is far ahead. Some are negative, as the clocks of host and GPU differ.
    queue_mean, queue_max: launched work that has not started, over the time from the first to the last event.
    queue_empty_share: of that time, what had nothing launched waiting.
    short_kernels: events below 10 us, per step.
    short_share: their share of the durations.
    gap_ns: time without any GPU event, per step.
    host_bound_ns: of it, gaps that ended with work launched after the GPU had run dry: the GPU waited for the host.
    sync_ns: time per step in calls that wait for the GPU (those of `syncs`), over all threads of the rank.
    host_bound_share: host_bound_ns, of the whole time.
    """
    events = origins(trace)
    linked = events.filter(pl.col("linked") & ~pl.col("graph"))
    latency = pl.col("ts") - pl.col("launched")
    spans = events.group_by(_ON).agg(
        first=pl.col("ts").min(),
        last=pl.col("end").max(),
        kernels=pl.len() / steps,
        launches=pl.col("launch").n_unique() / steps - (pl.col("launch").null_count() > 0).cast(pl.Int64) / steps,
        graph_kernels=pl.col("graph").sum() / steps,
        short_kernels=(pl.col("dur") < SHORT_NS).sum() / steps,
        short_share=pl.col("dur").filter(pl.col("dur") < SHORT_NS).sum() / pl.col("dur").sum(),
    )
    latencies = linked.group_by(_ON).agg(
        latency_median_ns=latency.median().round().cast(pl.Int64),
        latency_p90_ns=latency.quantile(0.9, "lower").cast(pl.Int64),
        latency_max_ns=latency.max(),
    )
    waits = dry_times(trace).with_columns(gap=pl.col("end") - pl.col("ts"))
    waited = waits.group_by(_ON).agg(gap=pl.col("gap").sum(), host_bound=pl.col("gap").filter("late").sum())
    sync = host_waits(trace).group_by("rank").agg(sync=pl.col("dur").sum())
    table = spans
    for more, on in ((latencies, _ON), (_queue(trace, spans), _ON), (waited, _ON), (sync, ("rank",))):
        table = table.join(more, on=on, how="left", nulls_equal=True)
    per_step = [
        (pl.col(name).fill_null(0) / steps).round().cast(pl.Int64).alias(f"{name}_ns")
        for name in ("gap", "host_bound", "sync")
    ]
    return table.sort(_ON).select(
        *_ON, "kernels", "launches", "graph_kernels", "^latency_.*$", "^queue_.*$", "short_kernels", "short_share", *per_step,
        (pl.col("host_bound").fill_null(0) / (pl.col("last") - pl.col("first"))).alias("host_bound_share"),
    )  # fmt: skip


def _queue(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """The mean and the largest queue of each device, and how long it was empty."""
    levels = (
        queue_length(trace)
        .select(*_ON, "ts", "value")
        .join(spans.select(*_ON, "first", "last"), on=_ON, nulls_equal=True)
    )
    within = levels.with_columns(
        lasts=(
            pl.col("ts").shift(-1).over(_ON).fill_null(pl.col("last")).clip(pl.col("first"), pl.col("last"))
            - pl.col("ts").clip(pl.col("first"), pl.col("last"))
        )
    )
    time, whole = pl.col("lasts"), pl.col("last").first() - pl.col("first").first()
    return within.group_by(_ON).agg(
        queue_mean=(time * pl.col("value")).sum() / whole,
        queue_max=pl.col("value").max().cast(pl.Int64),
        queue_empty_share=1.0 - time.filter(pl.col("value") > 0).sum() / whole,
    )


def runtime(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a runtime or driver call by name, over all threads and ranks, most host time first.

    time_ns: on the host, per step.
    share: of the time of all these calls.
    count: per step.
    name: of the call.
    role: what the call is for (runtime_calls.toml): launch, graph launch, synchronize, copy, blocking copy, wait, memory, capture, load code,
        query, other.
    per_launch: calls for each call that launches GPU work. A query at 5 per launch is called too often.
    mean_ns, median_ns, max_ns, min_ns, std_ns: mean, median, most, least and standard deviation of one call.
    """
    calls = runtime_calls(trace)
    launches = max(1, calls.filter(pl.col("role").is_in(LAUNCHING)).height)
    ranked = spending(calls, ["name", "role"], steps)
    return ranked.with_columns(per_launch=pl.col("count") * steps / launches).select(
        "time_ns", "share", "count", "name", "role", "per_launch", "mean_ns", "cumulative_share",
        "median_ns", "max_ns", "min_ns", "std_ns",
    )  # fmt: skip


def syncs(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a kind of call that waits for the GPU and who made it, most host time first.

    What the profiler waits for itself is not counted: when it starts and stops, and, under `rung profile`, at the end of each step.

    time_ns: on the host, per step.
    share: of the time of all these calls.
    count: per step.
    call: the runtime call.
    op: the innermost operator around it, as in aten::item; empty if there is none.
    why: "synchronize", or "blocking copy" for one that returned only when its copy had ended.
    mean_ns, median_ns, max_ns, min_ns, std_ns: mean, median, most, least and standard deviation of one call.
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


def queue(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a change of a device's queue.

    A kernel waits from the start of its launch call to its own start; the kernels of a graph all wait from its launch.

    ts: when, on the trace's clock.
    length: kernels in the queue from then on.
    """
    return queue_length(trace).select("rank", "device", "ts", length=pl.col("value").cast(pl.Int64))
