"""Interval arithmetic on integer nanoseconds: half-open intervals [start, end)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Starts and ends of the merged intervals, ascending. Touching intervals become one."""
    if start.size == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.r_[True, start[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return start[first], reach[last]


def covered(start: Ints, end: Ints) -> int:
    """Nanoseconds that at least one of the intervals covers."""
    low, high = union(start, end)
    return int((high - low).sum())


def parents(start: Ints, end: Ints, thread: Ints) -> tuple[list[int], list[int]]:
    """Call nesting by time: (the order in which callers come before callees, the caller of each item or -1).

    An item is called by the innermost item of its thread that is still open when it starts. Of two items with
    the same start the longer one is the caller; of two equal ones, the first.
    """
    order: list[int] = np.lexsort((-end, start, thread)).tolist()
    starts, ends, threads = start.tolist(), end.tolist(), thread.tolist()
    parent = [-1] * len(order)
    stack: list[int] = []
    for item in order:
        while stack and (threads[stack[-1]] != threads[item] or ends[stack[-1]] <= starts[item]):
            stack.pop()
        if stack:
            parent[item] = stack[-1]
        stack.append(item)
    return order, parent


def self_times(start: Ints, end: Ints, parent: list[int]) -> list[int]:
    """Nanoseconds of each item that none of the items it called covers."""
    starts, ends = start.tolist(), end.tolist()
    own = [e - s for s, e in zip(starts, ends, strict=True)]
    for item, caller in enumerate(parent):
        if caller >= 0:
            # A callee may outlast its caller by the rounding of old traces: only the shared part counts.
            own[caller] -= min(ends[item], ends[caller]) - starts[item]
    return [max(0, value) for value in own]
