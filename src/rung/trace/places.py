"""Where a viewer shows each event: one process a GPU and one a host process of each rank, one thread a stream; and on which lane, as it
cannot draw two slices that merely overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from rung.trace.table import GPU_KINDS, Trace

ON_GPU = frozenset((*GPU_KINDS, "gpu_annotation"))
_COLUMNS = ("rank", "pid", "tid", "device", "stream")

Key = tuple[bool, int | None, str | None, str | None, int | None, int | None]


@dataclass(frozen=True)
class Place:
    """pid, tid: unique in the trace, the event's own where they can be; process, thread: what a reader sees."""

    pid: str
    tid: str
    process: str
    thread: str
    rank: int | None
    device: int | None  # of a GPU's own process; None for the host


def places(trace: Trace) -> dict[Key, Place]:
    """The place of each (on a GPU, rank, pid, tid, device, stream) among the events.

    Two ranks on two machines may have processes of one number, and a profiler may give its kernels the process of
    the host: they get names of their own, as a viewer would draw them over each other.
    """
    on_gpu = pl.col("kind").is_in(list(ON_GPU)).alias("on_gpu")
    keys: list[Key] = trace.events.select(on_gpu, *_COLUMNS).unique(maintain_order=True).rows()
    ranks = {rank for _, rank, *_ in keys}
    host = {(rank, pid) for gpu, rank, pid, *_ in keys if not gpu}
    users: dict[str | None, set[tuple[int | None, int | None, bool]]] = {}
    for gpu, rank, pid, _, device, _ in keys:
        users.setdefault(pid, set()).add((rank, device if gpu else None, gpu))
    found: dict[Key, Place] = {}
    for key in keys:
        gpu, rank, pid, tid, device, stream = key
        of_rank = f" (rank {rank})" if len(ranks) > 1 else ""
        own = pid is not None and len(users[pid]) == 1 and not (gpu and (rank, pid) in host)
        if gpu:
            name = f"GPU {device}" if device is not None else "GPU unknown"
            shown_pid = str(pid) if own else f"{name}{of_rank}"
            shown_tid = str(tid) if own else str(stream)
            found[key] = Place(shown_pid, shown_tid, name + of_rank, f"stream {stream}", rank, device)
        else:
            alone = own or {(rank, None, False)} == {user for user in users[pid] if not user[2]}
            shown = str(pid) if alone else f"{pid}{of_rank}"
            found[key] = Place(shown, str(tid), f"process {pid}{of_rank}", f"thread {tid}", rank, None)
    return found


Ints = npt.NDArray[np.int64]

# Beyond so many slices across each other, no viewer shows anything; and looking for a free lane costs time.
LANES = 32


@dataclass
class _Lane:
    number: int
    open: list[tuple[int, int]] = field(default_factory=list)  # (end, row), the innermost last


def nested(start: Ints, end: Ints, group: Ints) -> Iterator[tuple[int, int, int, int]]:
    """The begins and ends of all slices as (time, row, lane, shown end); an end has row -1.

    Within a lane they come in time order and nest. Lane numbers count from 0 in each group. The shown end is that of
    the slice but where all LANES are taken: there it is cut to fit on the last.
    """
    order: list[int] = np.lexsort((np.arange(start.size), start - end, start, group)).tolist()
    starts, ends, groups = start.tolist(), end.tolist(), group.tolist()
    lanes: list[_Lane] = []
    current = None
    for row in order:
        if groups[row] != current:
            yield from _close(lanes)
            current, lanes = groups[row], []
        ts, stop = starts[row], ends[row]
        for lane in lanes:
            while lane.open and lane.open[-1][0] <= ts:
                yield lane.open.pop()[0], -1, lane.number, 0
            if not lane.open or lane.open[-1][0] >= stop:
                break
        else:
            if len(lanes) < LANES:
                lane = _Lane(len(lanes))
                lanes.append(lane)
            else:
                lane = lanes[-1]
                stop = lane.open[-1][0]
        lane.open.append((stop, row))
        yield ts, row, lane.number, stop
    yield from _close(lanes)


def _close(lanes: list[_Lane]) -> Iterator[tuple[int, int, int, int]]:
    for lane in lanes:
        while lane.open:
            yield lane.open.pop()[0], -1, lane.number, 0
