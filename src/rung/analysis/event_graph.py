"""What had to wait for what: the calls, GPU events and collectives of a run as a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls, launching_calls
from rung.analysis.collectives import keyed
from rung.analysis.gpu_order import launch_edges, meetings_of_ranks, stream_pairs, unlinked_pairs, wait_pairs
from rung.analysis.host_order import edge_rows, host_nodes, in_order
from rung.analysis.origins import origins
from rung.analysis.skew import clock_offsets
from rung.analysis.steps import step_spans
from rung.trace.table import Trace

MOST_EVENTS = 100_000  # on the GPU; above, only the last recorded step is looked at

_NODES = pl.DataFrame(
    schema={"time": pl.Int64, "dur": pl.Int64, "what": pl.String, "name": pl.String, "rank": pl.Int32}
)
_EDGES = pl.DataFrame(schema=dict.fromkeys(("source", "target", "weight", "by"), pl.Int64))


@dataclass(frozen=True)
class Graph:
    """Nodes are moments (ns on the first rank's clock); an edge says that `target` comes `weight` ns or more after `source`.

    nodes: `time`; `dur`, how long what starts there takes on the GPU (0 on the host); `what`: computation,
        communication, memcpy, host, or "" for a meeting of ranks; `name`: operator, kernel or collective; `rank`.
    edges: `source`, `target`, `weight`, and `by`, the node whose work the weight is, -1 for a launch's latency.
    of: what it is the graph of: "recording", "step 17"; "" with a `note` why there is none.
    """

    nodes: pl.DataFrame
    edges: pl.DataFrame
    of: str = "recording"
    note: str = ""


def event_graph(trace: Trace) -> Graph:
    """The graph of a trace, without nodes where it has no GPU events with their launches, or too many.

    Read: the order of the calls of a thread and of the events of a stream, launches by correlation id, collectives by
    `collectives.keyed`. Inferred, and only where the times allow it: a synchronizing call waits for the GPU event that
    ended last during it, and a copy that is over when its call returns was waited for; after *StreamWaitEvent the next
    launch of the thread, or of the one that goes on, waits for what was launched last on each other stream, as does every
    collective; a launch that takes long itself while its stream is free is the host's time; a thread that
    did nothing while another launched goes on after that one (autograd has threads of its own); what was
    launched before the recording waits for what ended shortly before it.
    """
    gpu, calls, of = _chosen(trace)
    if not of:
        many = f"more than {MOST_EVENTS:,} GPU events, and no step of fewer is marked" if gpu.height else ""
        return Graph(_NODES, _EDGES, "", many)
    meetings = meetings_of_ranks(trace, gpu)
    keys = meetings.group_by("key", maintain_order=True).agg(pl.col("met", "collective").first(), n=pl.len())
    host = host_nodes(trace, calls, gpu)
    blocking = np.flatnonzero((host["waited_for"] >= 0).to_numpy())

    # Nodes: GPU events, calls, the ends of calls that wait, meetings of ranks, and what collectives do after them.
    first_call = gpu.height
    first_end = first_call + host.height
    first_meeting = first_end + blocking.size
    first_work = first_meeting + keys.height
    at, end = gpu["ts"].to_numpy(), gpu["end"].to_numpy()
    event = meetings["event"].to_numpy().astype(np.int64)
    met = np.maximum(meetings["met"].to_numpy(), at[event])
    work, work_at, work_dur = np.arange(gpu.height), at.copy(), end - at
    work[event], work_at[event], work_dur[event] = first_work + np.arange(event.size), met, end[event] - met
    dur = end - at
    dur[event] = 0  # until the ranks meet it only waits
    no_dur = np.zeros(first_work - first_call, dtype=np.int64)
    names = host_calls(trace)["name"].gather(host["label"]).fill_null(host["name"])
    of_meeting = pl.Series([None] * keys.height, dtype=pl.Int32)
    ranks = (gpu["rank"], host["rank"], host["rank"].gather(blocking), of_meeting, gpu["rank"].gather(event))
    titles = (gpu["label"], names, names.gather(blocking), keys["collective"], meetings["collective"])
    what = (
        gpu["role"].to_list(),
        ["host"] * (first_meeting - first_call),
        [""] * keys.height,
        ["communication"] * event.size,
    )
    nodes = pl.DataFrame(
        {
            "time": np.r_[at, host["ts"], host["end"].gather(blocking), keys["met"], met],
            "dur": np.r_[dur, no_dur, end[event] - met],
            "what": [kind for part in what for kind in part],
            "name": pl.concat(titles),
            "rank": pl.concat(ranks),
        }
    )

    # Edges.
    leave, leave_at = first_call + np.arange(host.height), host["ts"].to_numpy().copy()
    leave[blocking], leave_at[blocking] = first_end + np.arange(blocking.size), host["end"].to_numpy()[blocking]
    done = host["waited_for"].to_numpy()[blocking]
    source, target = np.hstack([stream_pairs(gpu), wait_pairs(calls, gpu), unlinked_pairs(gpu)])
    ordered = work_at[source] <= at[target]
    source, target = source[ordered], target[ordered]
    place = first_meeting + np.repeat(np.arange(keys.height), keys["n"].to_numpy())
    in_time = at[event] <= meetings["met"].to_numpy()  # later by a clock that is off: not what the others waited for
    none = np.zeros(max(blocking.size, event.size), dtype=np.int64)
    edges = np.hstack(
        [
            in_order(host, first_call, leave, leave_at),
            edge_rows(first_call + blocking, leave[blocking], none[: blocking.size], -1),
            edge_rows(work[done], leave[blocking], work_dur[done], work[done]),
            launch_edges(gpu, host, first_call),
            edge_rows(work[source], target, np.minimum(work_dur[source], at[target] - work_at[source]), work[source]),
            edge_rows(event[in_time], place[in_time], none[: in_time.sum()], -1),
            edge_rows(place, work[event], none[: event.size], -1),
            edge_rows(event, work[event], none[: event.size], -1),
        ]
    )
    frame = pl.DataFrame(dict(zip(("source", "target", "weight", "by"), edges, strict=True)))
    return _clipped(Graph(nodes, frame, of), int(at.min()), int(end.max()))


def _clipped(graph: Graph, low: int, high: int) -> Graph:
    """The graph from the first GPU event to the end of the last: what the host did outside of that is no time of theirs. Of the latency of
    a launch before it, only what was left then counts."""
    nodes = graph.nodes.with_columns(pl.col("time").clip(low, high))
    apart = nodes["time"].gather(graph.edges["target"]) - nodes["time"].gather(graph.edges["source"])
    passed = (low - graph.nodes["time"].gather(graph.edges["source"])).clip(0)
    left = (graph.edges["weight"] - passed).clip(0)
    edges = graph.edges.with_columns(weight=pl.min_horizontal(left, apart))
    return Graph(nodes, edges.filter(pl.col("weight") >= 0), graph.of)


def _chosen(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame, str]:
    """The GPU events, by start, and the calls, both on the first rank's clock, and what they are all of: of a large trace
    the last step. "" where there is nothing to make a graph of: then the GPU events are those that are too many."""
    gpu = origins(trace)
    calls = host_calls(trace).with_row_index("position").with_columns(pl.col("position").cast(pl.Int64))
    of = "recording"
    spans = step_spans(trace)
    if gpu.height > MOST_EVENTS and spans.height:
        last = spans.filter(pl.col("step") == spans["step"].max())
        of = f"step {last['step'][0]}"
        inside = [
            pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)) & pl.col(column).is_between(low, high)
            for column in ("launched", "ts")
            for rank, low, high in last.select("rank", "ts", "end").iter_rows()
        ]
        gpu = gpu.filter(pl.any_horizontal(inside[: last.height]))
        if gpu.height <= MOST_EVENTS:
            calls = calls.filter(pl.any_horizontal(inside[last.height :]))
    if gpu.height > MOST_EVENTS:
        return gpu, calls, ""
    if gpu["launch"].null_count() == gpu.height:
        return gpu.clear(), calls, ""
    shift = pl.col("rank").replace_strict(clock_offsets(trace), default=0, return_dtype=pl.Int64)
    names = launching_calls(trace)["name"].gather(gpu["op"])
    place = ["rank", "device", "stream", "own_ts"]
    kinds = keyed(trace).select("rank", "device", "stream", "collective", own_ts="ts").unique(place)
    gpu = (
        gpu.with_columns(label=names.fill_null(gpu["name"]), own_ts="ts")
        .join(kinds, on=place, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("ts") - shift, pl.col("end") - shift, label=pl.coalesce("collective", "label"))
        .sort("ts", "end", maintain_order=True)
    )
    return gpu, calls.with_columns(pl.col("ts") - shift, pl.col("end") - shift), of
