"""Which call is inside which, for many events at once: the vectorized form of `intervals.parents`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rung.analysis.intervals import Ints, parents

Mask = npt.NDArray[np.bool_]


def callers(start: Ints, end: Ints, thread: Ints) -> Ints:
    """The innermost item of the same thread that is still open when each item starts, or -1.

    Of two items with the same start the longer one is the caller; of two equal ones, the first. Where items of a
    thread nest, as calls do, an item at depth d is inside the latest item before it at depth d - 1. Where some do
    not (old traces round to microseconds), all are looked at one by one.
    """
    size = start.size
    if size == 0:
        return np.empty(0, dtype=np.int64)
    low, high = int(start.min()), int(end.max())
    if high - low >= 2**61:
        return np.array(parents(start, end, thread)[1], dtype=np.int64)
    order = np.lexsort((-end, start, thread))
    # Doubled, so that an item without length can end after it starts and before anything else does.
    starts = (start[order] - low) * 2
    ends = np.maximum((end[order] - low) * 2, starts + 1)
    threads = thread[order]
    bounds = np.r_[0, np.flatnonzero(threads[1:] != threads[:-1]) + 1, size].tolist()
    answer = np.full(size, -1, dtype=np.int64)
    for first, last in pairwise(bounds):
        of_thread = order[first:last]
        parent = _nested(starts[first:last], ends[first:last])
        if parent is None:
            some = start[of_thread], end[of_thread], np.zeros(last - first, dtype=np.int64)
            parent = np.array(parents(*some)[1], dtype=np.int64)
        answer[of_thread] = np.where(parent >= 0, of_thread[parent], -1)
    return answer


def _nested(starts: Ints, ends: Ints) -> Ints | None:
    """The callers of one thread's items, which are in order; None where they do not nest."""
    place = np.arange(starts.size)
    # Open when an item starts: those before it less those that have ended.
    depth = place - np.searchsorted(np.sort(ends), starts, side="right")
    inside = depth > 0
    by_depth = depth  # and then in order; in place, as there are millions
    by_depth *= place.size
    by_depth += place
    ordered = np.sort(by_depth)
    before = np.searchsorted(ordered, by_depth - place.size) - 1  # the latest before it at the depth above
    parent = np.where(inside, ordered[np.maximum(before, 0)] % place.size, -1)
    around = ends[np.maximum(parent, 0)]
    sound = ~inside | ((around > starts) & (around >= ends))
    return parent if sound.all() else None


def nearest(parent: Ints, chosen: Mask) -> Ints:
    """For each item the first that is `chosen`, going up from itself; -1 where there is none."""
    top = _top(np.where(chosen | (parent < 0), np.arange(parent.size), parent))
    return np.where(chosen[top], top, -1)


def outermost(parent: Ints, chosen: Mask) -> Ints:
    """For each item the last that is `chosen`, going up from itself; -1 where there is none."""
    first = nearest(parent, chosen)
    above = np.where(parent >= 0, first[parent], -1)  # parent -1 reads the last item: not used
    top = _top(np.where(above >= 0, above, np.arange(parent.size)))
    return np.where(first >= 0, top[first], -1)


def _top(up: Ints) -> Ints:
    """Where each item ends that goes up until it stays, in as many rounds as its way has binary digits."""
    while True:
        further = up[up]
        if np.array_equal(further, up):
            return up
        up = further
