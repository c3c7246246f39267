"""One restart of a comparison: blocks of all sides in an order that favours none."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Generator, Sequence

from rung.measure.compare import Restart

Block = Callable[[], Sequence[float]]  # runs a few steps, returns the nanoseconds of each


def interleaved(
    blocks: Sequence[Block],
    rounds: int,
    more: Callable[[Restart], bool] = lambda so_far: False,
    typical: Callable[[Sequence[float]], float] = statistics.median,
    lots: random.Random | None = None,
) -> tuple[Restart, list[list[float]]]:
    """Runs the blocks of all sides in the order of `turns`. Returns the restart, and the samples of each side, nanoseconds, in the order
    in which they were taken."""
    order = turns(len(blocks), rounds, more, typical, lots)
    side = next(order)
    while True:
        taken = blocks[side]()
        try:
            side = order.send(taken)
        except StopIteration as end:
            restart, samples = end.value
            return restart, samples


def turns(
    n: int,
    rounds: int,
    more: Callable[[Restart], bool] = lambda so_far: False,
    typical: Callable[[Sequence[float]], float] = statistics.median,
    lots: random.Random | None = None,
) -> Generator[int, Sequence[float], tuple[Restart, list[list[float]]]]:
    """Says again and again which of n sides is next, and is sent the nanoseconds of the steps that it ran: `rounds` rounds, after one that
    settles the sides in each other's company, and further ones while `more` of what there is so far says so.

    A round visits every side and then every side again in reverse (A B B A; A B C C B A), so that drift that is
    linear over it hits all alike. Its order is drawn by lot (from `lots`): of equal sides, chance alone then says which one
    a disturbance hits, however regular or lasting it is. typical: the one figure of a block. Returns what `interleaved` does.
    """
    lots = lots or random.Random()
    rows: list[tuple[float, ...]] = []
    samples: list[list[float]] = [[] for _ in range(n)]
    k = 0
    while k <= rounds or more(Restart(tuple(rows))):
        order = lots.sample(range(n), n)
        visits = []
        for half in (order, order[::-1]):
            figures = dict.fromkeys(half, 0.0)
            for side in half:
                taken = yield side
                figures[side] = typical(taken)
                if k:
                    samples[side].extend(taken)
            visits.append([figures[side] for side in range(n)])
        if k:
            rows.append((*visits[0], *reversed(visits[1])))
        k += 1
    return Restart(tuple(rows)), samples
