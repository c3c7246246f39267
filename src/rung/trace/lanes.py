"""Lays slices out so that those on one lane nest: a viewer cannot draw two that merely overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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
