"""The order in which the host worked, for the graph of events: calls, what they waited for, threads that took turns."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.intervals import Ints
from rung.analysis.nesting import outermost
from rung.trace.table import Trace

_EVER = -(2**62)
_SYNC = r"(Device|Stream|Event|Ctx)Synchronize$"


def host_nodes(trace: Trace, calls: pl.DataFrame, gpu: pl.DataFrame) -> pl.DataFrame:
    """The calls that launch or synchronize, by thread and time, with `thread`, `label` (position of the operator),
    `idle_from` and `idle_to` (see _idle) and `waited_for` (place in gpu, or -1)."""
    every = host_calls(trace)
    thread = every.select(pl.struct("rank", "pid", "tid").rank("dense").cast(pl.Int64)).to_series()
    top = outermost(every["caller"].to_numpy(), (every["kind"] != "annotation").to_numpy())
    launches = gpu.select("launch", done="end").with_row_index("event").drop_nulls("launch")
    last = launches.group_by("launch").agg(pl.col("done").max(), pl.col("event").sort_by("done").last())
    sync = pl.col("name").str.contains(_SYNC)
    host = (
        calls.with_columns(thread=thread.gather(calls["position"]), label=pl.when(pl.col("op") >= 0).then("op"))
        .join(last, left_on="position", right_on="launch", how="left")
        .filter(pl.col("kind") == "runtime", sync | pl.col("done").is_not_null())
        .with_columns(sync=sync)
        .sort("thread", "ts", "position")
    )
    idle_from, idle_to = _idle(every, thread, top, host)
    shifted = (host["ts"] - every["ts"].gather(host["position"])).to_numpy()  # to the first rank's clock
    return host.with_columns(
        idle_from=pl.Series(idle_from + shifted),
        idle_to=pl.Series(idle_to + shifted),
        waited_for=pl.Series(_waited_for(host, gpu)),
    )


def _idle(every: pl.DataFrame, thread: pl.Series, top: Ints, host: pl.DataFrame) -> tuple[Ints, Ints]:
    """For each call the longest time, since the call before it on its thread, in which the thread did nothing recorded:
    from, to. Empty where both calls are of one operator."""
    start, end = every["ts"].to_numpy(), every["end"].to_numpy()
    called = top[host["position"].to_numpy()]
    low, high = start[called].copy(), start[called].copy()
    outer = every.select("ts", thread=thread).with_row_index("position")
    outer = outer.filter(pl.Series(top) == pl.col("position"))  # annotations are no work
    place = np.full(every.height, -1, dtype=np.int64)  # of an outermost call among those of its thread
    for number, part in outer.sort("thread", "ts").group_by("thread", maintain_order=True):
        position = part["position"].to_numpy()
        begins, ends = start[position], np.maximum.accumulate(end[position])
        gap = np.r_[0, np.maximum(begins[1:] - ends[:-1], 0)]
        here = np.flatnonzero((host["thread"] == number[0]).to_numpy())
        place[position] = np.arange(position.size)
        part_of, first, where = np.unique(place[called[here]], return_index=True, return_inverse=True)
        if part_of.size == 0:
            continue
        # The longest gap after the operator of the call before, up to this one's; of the first call, all before it.
        coded = gap * gap.size + np.arange(gap.size)
        longest = np.maximum.reduceat(coded, np.r_[0, part_of[:-1] + 1])[: part_of.size]
        if part_of[-1] + 1 < gap.size:  # the last stretch ends at the last call
            longest[-1] = coded[(part_of[-2] + 1 if part_of.size > 1 else 0) : part_of[-1] + 1].max()
        after = longest % gap.size
        new = np.zeros(here.size, dtype=bool)
        new[first] = True
        chosen = after[where]
        low[here] = np.where(new, np.where(chosen > 0, ends[np.maximum(chosen, 1) - 1], _EVER), low[here])
        high[here] = np.where(new, begins[chosen], high[here])
        low[here[first[0]]] = _EVER  # before its first call a thread had nothing to do
    return low, high


def _waited_for(host: pl.DataFrame, gpu: pl.DataFrame) -> Ints:
    """The GPU event that a call waited for, -1 for none."""
    own = host.select(
        pl.when(~pl.col("sync") & (pl.col("done") <= pl.col("end"))).then(pl.col("event").cast(pl.Int64)).fill_null(-1)
    )
    found: Ints = own.to_series().to_numpy().copy()
    for (rank,), part in gpu.with_row_index("place").sort("end").group_by("rank"):
        ends, places = part["end"].to_numpy(), part["place"].to_numpy().astype(np.int64)
        syncs = (host["sync"] & host["rank"].eq_missing(rank)).to_numpy()
        latest = np.searchsorted(ends, host["end"].to_numpy()[syncs], side="right") - 1
        during = (latest >= 0) & (ends[np.maximum(latest, 0)] > host["ts"].to_numpy()[syncs])
        found[syncs] = np.where(during, places[np.maximum(latest, 0)], -1)
    return found


def in_order(host: pl.DataFrame, first: int, leave: Ints, leave_at: Ints) -> Ints:
    """Edges: Each call after the one before on its thread, or after another thread's where it had been waiting for that."""
    order = np.argsort(host["ts"].to_numpy(), kind="stable").tolist()
    ranks, threads = host["rank"].fill_null(-1).to_list(), host["thread"].to_list()
    begins, left = host["ts"].to_list(), leave_at.tolist()
    idle_from, idle_to = host["idle_from"].to_list(), host["idle_to"].to_list()
    of_rank: dict[int, _Latest] = {}
    rows = []
    for call in order:
        latest = of_rank.setdefault(ranks[call], _Latest({}, {}, []))
        own, other = latest.calls.get(threads[call]), latest.of_others(threads[call])
        handed = other is not None and idle_from[call] <= begins[other] and left[other] <= idle_to[call]
        if own is not None and left[own] > begins[call]:
            pass  # a call inside another
        elif own is not None:
            rows.append((leave[own], first + call, 0 if handed else begins[call] - left[own], first + call))
        if handed and other is not None:
            rows.append((leave[other], first + call, begins[call] - left[other], first + call))
        latest.add(threads[call], call, left[call])
    return np.array(rows, dtype=np.int64).reshape(-1, 4).T


class _Latest(NamedTuple):
    """The latest call of each thread of a rank. seen: the threads in the order of their first calls; heap: calls by when they were left, the last
    first, with calls that are no thread's latest any more."""

    calls: dict[int, int]
    seen: dict[int, int]
    heap: list[tuple[int, int, int, int]]  # -left, seen, thread, call

    def add(self, thread: int, call: int, left: int) -> None:
        self.calls[thread] = call
        place = self.seen.setdefault(thread, len(self.seen))
        heapq.heappush(self.heap, (-left, place, thread, call))

    def of_others(self, thread: int) -> int | None:
        """Of the latest calls of all threads but this the one that was left last; of several the one whose thread was seen first."""
        own = None
        while self.heap:
            _, _, other, call = self.heap[0]
            if self.calls[other] != call:
                heapq.heappop(self.heap)
            elif other == thread:
                own = heapq.heappop(self.heap)
            else:
                break
        found = self.heap[0][3] if self.heap else None
        if own is not None:
            heapq.heappush(self.heap, own)
        return found


def edge_rows(source: Ints, target: Ints, weight: Ints, by: Ints | int) -> Ints:
    """Edges as four rows."""
    return np.vstack([source, target, weight, np.broadcast_to(by, source.shape)]).astype(np.int64)
