"""Where a viewer shows each event: one process a GPU and one a host process of each rank, one thread a stream."""

from __future__ import annotations

from dataclasses import dataclass

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
