"""Sides against each other: fresh processes of all of them, alternating blocks, until the answer is clear."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from rung.measure import (
    CLIMB,
    Looks,
    Restart,
    decide,
    rank,
    until_next_look,
)
from rung.side import Setup, Side
from rung.timing.duel import Duel
from rung.timing.start import Start

progress = logging.getLogger(__name__)


def fight(
    setup: Setup,
    sides: Mapping[str, Side],
    *,
    log: str,
    left: Callable[[], float],
    looks: Looks = CLIMB,
    margin: float | None = None,
    seen: Callable[[Duel], None] = lambda duel: None,
) -> Duel:
    """Restarts all sides, named, until the comparison is decided, or until `left()` seconds are gone.

    looks, margin: as in `rung.measure.decide`; seen: is told after every restart.
    Raises SideFailed when a worker of one side raises, hangs or dies.
    """
    duel = Duel()
    took: list[float] = []  # by each round of restarts
    while True:
        began = time.monotonic()
        with ExitStack() as stack:
            count = min(setup.together, until_next_look(len(duel.restarts), looks))
            first = len(duel.restarts) + 1
            which = f"restart {first}" if count == 1 else f"restarts {first} to {first + count - 1}"
            progress.info("%s: loading, compiling and warming up", which)
            starts = [Start(setup, sides, f"{log}-{first + k}", stack) for k in range(count)]
            for start in starts:
                start.warm(setup.limits.prepare)
            for start in starts:
                progress.info("restart %d: timing", len(duel.restarts) + 1)
                duel.restarts.append(start.timed(duel))
                if setup.launcher:
                    duel.ranks = max(len(worker.hosts) for worker in start.workers.values())
                seen(duel)
        took.append(time.monotonic() - began)
        # The first round compiles what the next ones find in a cache: it tells only until another was seen.
        last = left() < 1.2 * max(took[1:] or took)
        if len(sides) == 2:
            duel.comparison = decide(duel.restarts, looks=looks, margin=margin, last=last)
        else:
            duel.ranking = rank(log_ratios(list(sides), duel.restarts), looks=looks, margin=margin, last=last)
        said = duel.comparison or duel.ranking
        if said and said.final:
            return duel


def log_ratios(names: list[str], restarts: list[Restart]) -> dict[tuple[str, str], list[float]]:
    """Of every pair of sides, the answer of each restart."""
    pairs = itertools.combinations(enumerate(names), 2)
    return {(a, b): [r.log_ratio(i, j) for r in restarts] for (i, a), (j, b) in pairs}
