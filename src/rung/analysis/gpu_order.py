"""The order in which GPUs worked, for the graph of events: launches, streams, waits between them, ranks that meet."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.collectives import keyed
from rung.analysis.host_order import edge_rows
from rung.analysis.intervals import Ints
from rung.trace.table import Trace

LATENCY_NS = 5_000  # of a launch, where every stream was busy at each; else the median of those on a free stream
_EVER = -(2**62)
SOON_NS = 20_000  # an event of another stream so shortly before is what one without a launch waited for
_WAIT = r"StreamWaitEvent"


def meetings_of_ranks(trace: Trace, gpu: pl.DataFrame) -> pl.DataFrame:
    """The events of collectives that several ranks share: `event` (place in gpu), `key`, `collective`, and `met`, when
    the last rank came."""
    shared = keyed(trace).filter(pl.col("matched") != "alone", pl.col("key").is_not_null())
    return (
        gpu.with_row_index("event")
        .join(
            shared.select("rank", "device", "stream", "key", "collective", own_ts="ts"),
            on=["rank", "device", "stream", "own_ts"], how="inner", nulls_equal=True,
        )
        .filter(pl.col("rank").n_unique().over("key") > 1)
        .with_columns(met=pl.min_horizontal(pl.col("ts").max().over("key"), pl.col("end").min().over("key")))
        .sort("key", "event")
        .select("event", "key", "collective", "met")
    )  # fmt: skip


def launch_edges(gpu: pl.DataFrame, host: pl.DataFrame, first: int) -> Ints:
    """Edges from calls to what they launched, with the latency of a launch as far as nothing was in its way. Where the stream
    was free and the call itself took longer than a launch does, as one that loads code, that is the host's time."""
    before = pl.col("end").cum_max().shift().over("rank", "device", "stream")
    pairs = (
        gpu.with_row_index("event")
        .with_columns(free=before.fill_null(_EVER))
        .select("event", "launch", "ts", "rank", "free")
        .join(host.with_row_index("call").select("call", launch="position", called="ts", returned="end"), on="launch")
        .sort("event")
        .unique("launch", keep="first", maintain_order=True)  # of a graph's events the first; the others follow it
        .with_columns(latency=pl.col("ts") - pl.col("called"))
        .filter(pl.col("latency") >= 0)  # else the clocks of host and GPU are apart
        .with_columns(
            alone=pl.when(pl.col("free") <= pl.col("called")).then("latency").median().over("rank").cast(pl.Int64),
            spent=pl.when(pl.col("free") <= pl.col("called")).then(pl.col("returned") - pl.col("called")).otherwise(0),
        )
        .with_columns(usual=pl.col("alone").fill_null(LATENCY_NS))
        .with_columns(long=pl.col("spent") > pl.col("usual"))
    )
    weight = pl.min_horizontal("latency", pl.col("usual") + pl.when("long").then("spent").otherwise(0))
    call, event = (pairs[name].to_numpy().astype(np.int64) for name in ("call", "event"))
    by = np.where(pairs["long"].to_numpy(), first + call, -1)
    return edge_rows(first + call, event, pairs.select(weight).to_series().to_numpy(), by)


def stream_pairs(gpu: pl.DataFrame) -> Ints:
    """Each event of a stream and the next."""
    rows = gpu.with_row_index("event").with_columns(before=pl.col("event").shift().over("rank", "device", "stream"))
    return rows.drop_nulls("before").select(pl.col("before", "event").cast(pl.Int64)).to_numpy().T


def wait_pairs(calls: pl.DataFrame, gpu: pl.DataFrame) -> Ints:
    """Events of other streams that an event waits for after *StreamWaitEvent, and that a collective waits for. Where the
    thread that waited launches nothing more before another goes on, it is that one's first launch: DDP waits for its
    collectives on autograd's thread, and the optimizer's step is launched on the caller's."""
    waits = calls.filter(pl.col("kind") == "runtime", pl.col("name").str.contains(_WAIT)).select(
        "rank", "pid", "tid", at="ts", event=pl.lit(-1, pl.Int64)
    )
    launched = (
        gpu.with_row_index("event")
        .drop_nulls("launch")
        .join(calls.select("pid", "tid", launch="position", at="ts"), on="launch", suffix="_call")
        .select("rank", pid="pid_call", tid="tid_call", at="at", event=pl.col("event").cast(pl.Int64))
    )
    both = pl.concat([waits, launched]).sort("at", maintain_order=True)
    place = gpu.select(pl.struct("device", "stream").rank("dense")).to_series().to_list()
    ends, begins, roles = gpu["end"].to_list(), gpu["ts"].to_list(), gpu["role"].to_list()
    pairs = []
    for _, part in both.group_by("rank", maintain_order=True):
        latest: dict[int, int] = {}
        waiting: set[tuple[str, str]] = set()
        before: tuple[str, str] | None = None  # the thread of the launch before
        for pid, tid, event in part.select("pid", "tid", "event").iter_rows():
            if event < 0:
                waiting.add((pid, tid))
                continue
            waited = waiting & {(pid, tid), before}
            before = (pid, tid)
            if waited or roles[event] == "communication":
                waiting -= waited
                pairs += [(e, event) for s, e in latest.items() if s != place[event] and ends[e] <= begins[event]]
            latest[place[event]] = event
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


def unlinked_pairs(gpu: pl.DataFrame) -> Ints:
    """For each event whose launch is not recorded, the event of its device that ended last before it, if shortly."""
    rows = gpu.with_row_index("event").select("event", "rank", "device", "ts", "end", "linked")
    lone = rows.filter(~pl.col("linked")).sort("ts").with_columns(pl.col("rank").fill_null(-1))
    if lone.is_empty():
        return np.empty((2, 0), dtype=np.int64)
    ended = (
        rows.select("rank", "device", at="end", before="event").with_columns(pl.col("rank").fill_null(-1)).sort("at")
    )
    found = lone.join_asof(
        ended, left_on="ts", right_on="at", by=["rank", "device"], tolerance=SOON_NS, check_sortedness=False
    ).filter(pl.col("before").is_not_null(), pl.col("before") != pl.col("event"))
    return found.select(pl.col("before", "event").cast(pl.Int64)).to_numpy().T
