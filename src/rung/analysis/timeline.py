"""How busy was each GPU, and with what?"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rung.analysis.gpu_events import gpu_events
from rung.analysis.intervals import Ints, union
from rung.analysis.once import once
from rung.analysis.steps import step_at
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "step": pl.Int64(),
    "total_ns": pl.Int64(),
    "busy_ns": pl.Int64(),
    "idle_ns": pl.Int64(),
    "computation_ns": pl.Int64(),
    "communication_ns": pl.Int64(),
    "exposed_communication_ns": pl.Int64(),
    "memcpy_ns": pl.Int64(),
    "exposed_memcpy_ns": pl.Int64(),
    "kernels": pl.Int64(),
    "unlinked": pl.Int64(),
    "unlinked_ns": pl.Int64(),
}
BEFORE = -1  # as a step: what ran before the first work of the first recorded step


def timeline(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a rank and device over all its streams, and one for each recorded step.

    A step on the GPU begins with the first work that was launched in it and ends where the next begins. So the steps of a device add up to
    its whole, exactly. For each of them, computation + exposed_communication + exposed_memcpy + idle == total, exactly.

    step: null for the whole; otherwise the number of the profiler's step, -1 for what ran before the first.
    total_ns: from the start of the first GPU event to the end of the last.
    busy_ns: what any event covers.
    idle_ns: the rest.
    computation_ns: what kernels cover that are neither collectives nor copies, and memsets.
    communication_ns: what kernels of collectives cover, by the operator that launched them or by name.
    exposed_communication_ns: what of it no computation covers.
    memcpy_ns: what copies cover, the runtime's copy kernels among them.
    exposed_memcpy_ns: what of it neither computation nor communication covers.
    kernels: GPU events that begin there.
    unlinked: of them, those whose launch lies outside of the trace.
    unlinked_ns: the sum of their durations.
    """
    return _timeline(trace)


@once
def _timeline(trace: Trace) -> pl.DataFrame:
    work = gpu_events(trace)
    work = work.with_columns(step=step_at(trace, work.select("rank", pid="process", at="launched")))
    rows: list[dict[str, Any]] = []
    for (rank, device), events in work.group_by("rank", "device", maintain_order=True):
        names, cuts = _cuts(events)
        parts = _parts(events, cuts)
        whole = {name: values.sum() for name, values in parts.items()}
        rows.append({"rank": rank, "device": device, "step": None, **whole})
        if len(names) > 1:
            rows += [
                {"rank": rank, "device": device, "step": step, **{name: values[i] for name, values in parts.items()}}
                for i, step in enumerate(names)
            ]
    return pl.DataFrame(rows, schema=SCHEMA).sort("rank", "device", maintain_order=True)


def _cuts(events: pl.DataFrame) -> tuple[list[int], Ints]:
    """The steps on a device in order, and the n + 1 times between which they lie."""
    first, last = int(events["ts"].to_numpy().min()), int(events["end"].to_numpy().max())
    begun = events.drop_nulls("step").group_by("step").agg(pl.col("ts").min()).sort("step")
    names, starts = begun["step"].to_list(), begun["ts"].to_numpy()
    if not names:
        return [0], np.array([first, last])
    if starts[0] > first:
        names, starts = [BEFORE, *names], np.r_[first, starts]
    return names, np.r_[np.maximum.accumulate(starts), last]


def _parts(events: pl.DataFrame, cuts: Ints) -> dict[str, Ints]:
    """The figures of each stretch between two cuts; the first cut is the start of the first event, the last the end."""
    start, end = events["ts"].to_numpy(), events["end"].to_numpy()
    role = events["role"]
    computing, communicating = (role == "computation").to_numpy(), (role == "communication").to_numpy()
    copying = (role == "memcpy").to_numpy()

    def over(chosen: np.ndarray) -> Ints:
        return _between(*union(start[chosen], end[chosen]), cuts)

    def begun(chosen: np.ndarray, weights: Ints | None = None) -> Ints:
        piece = np.clip(np.searchsorted(cuts, start[chosen], side="right") - 1, 0, cuts.size - 2)
        if weights is None:
            return np.bincount(piece, minlength=cuts.size - 1)
        sums = np.zeros(cuts.size - 1, dtype=np.int64)
        np.add.at(sums, piece, weights[chosen])
        return sums

    total, computation = np.diff(cuts), over(computing)
    without_copies, busy = over(computing | communicating), over(np.ones(start.size, dtype=bool))
    unlinked = ~events["linked"].to_numpy()
    return {
        "total_ns": total,
        "busy_ns": busy,
        "idle_ns": total - busy,
        "computation_ns": computation,
        "communication_ns": over(communicating),
        "exposed_communication_ns": without_copies - computation,
        "memcpy_ns": over(copying),
        "exposed_memcpy_ns": busy - without_copies,
        "kernels": begun((events["kind"] == "kernel").to_numpy()),
        "unlinked": begun(unlinked),
        "unlinked_ns": begun(unlinked, events["dur"].to_numpy()),
    }


def _between(low: Ints, high: Ints, cuts: Ints) -> Ints:
    """How much of disjoint ascending intervals lies between each cut and the next."""
    if low.size == 0:
        return np.zeros(cuts.size - 1, dtype=np.int64)
    done = np.r_[0, np.cumsum(high - low)]
    i = np.searchsorted(high, cuts)  # intervals that end before the cut
    part = np.where(i < low.size, np.maximum(cuts - low[np.minimum(i, low.size - 1)], 0), 0)
    return np.diff(done[i] + part)
