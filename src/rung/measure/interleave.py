"""One restart of a comparison: blocks of both sides in an order that favours neither."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rung.measure.compare import Restart

Block = Callable[[], Sequence[int]]  # runs a few steps, returns the nanoseconds of each


def interleaved(a: Block, b: Block, quads: int) -> tuple[Restart, list[int], list[int]]:
    """Runs `quads` quads of blocks, A B B A and B A A B in turn, after one that settles both in each other's company.

    Drift that is linear over a quad hits both sides alike; what comes first in a quad is A as often as B.
    Returns the restart and the samples of both sides, nanoseconds, in the order in which they were taken.
    """
    rows: list[tuple[float, float, float, float]] = []
    blocks = (a, b)
    samples: tuple[list[int], list[int]] = ([], [])
    for k in range(quads + 1):
        medians: tuple[list[float], list[float]] = ([], [])
        for side in (0, 1, 1, 0) if k % 2 else (1, 0, 0, 1):
            taken = blocks[side]()
            medians[side].append(statistics.median(taken))
            if k:
                samples[side].extend(taken)
        if k:
            rows.append((medians[0][0], medians[1][0], medians[1][1], medians[0][1]))
    return Restart(tuple(rows)), *samples
