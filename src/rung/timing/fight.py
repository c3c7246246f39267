"""Sides against each other: fresh processes of all of them, alternating blocks, until the answer is clear."""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from rung.measure import (
    CLIMB,
    Looks,
    Restart,
    decide,
    rank,
    until_next_look,
)
from rung.measure.futility import FUTILE, chance, needed
from rung.side import Setup, Side
from rung.timing.duel import Duel
from rung.timing.start import Start

progress = logging.getLogger(__name__)

MANY = 1000  # restarts, above which nobody asks how many exactly


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
    """Restarts all sides, named, until the comparison is decided, or until `left()` seconds are gone. Of two sides with a margin, it ends at a
    look after which the restarts that fit would hardly decide it.

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
                # That sides are as fast is shown here, which figures nearer to that would make easier.
                duel.restarts.append(replace(start.timed(duel), shortest=()))
                if setup.launcher:
                    duel.ranks = max(len(worker.hosts) for worker in start.workers.values())
                seen(duel)
        took.append(time.monotonic() - began)
        # The first round compiles what the next ones find in a cache: it tells only until another was seen.
        last = left() < 1.2 * max(took[1:] or took)
        if len(sides) == 2:
            duel.comparison = decide(duel.restarts, looks=looks, margin=margin, last=last)
            if duel.comparison and margin:
                fit = looks[-1][0]
                if left() < math.inf:
                    fit = min(fit, len(duel.restarts) + math.ceil(count * left() / min(took[1:] or took)))
                _end_in_time(duel, looks, margin, fit)
        else:
            duel.ranking = rank(log_ratios(list(sides), duel.restarts), looks=looks, margin=margin, last=last)
        said = duel.comparison or duel.ranking
        if said and said.final:
            return duel


def _end_in_time(duel: Duel, looks: Looks, margin: float, fit: int) -> None:
    """Ends a comparison that more restarts, `fit` in all, would hardly decide; says of one that ends without a verdict how many would."""
    found, ratios = duel.comparison, [restart.log_ratio() for restart in duel.restarts]
    if not found or found.answer != "undecided" or len(ratios) < 2:
        return
    ended = ""
    if not found.final and chance(ratios, looks=looks, margin=margin, most=fit) < FUTILE:
        duel.comparison = replace(found, final=True, cut=True)
        ended = f"ended after {len(ratios)} restarts: the {fit - len(ratios)} more that fit would decide it with a chance below {FUTILE:.0%}. "
    if duel.comparison and duel.comparison.final:
        scatter = f"{'Restarts' if ended else 'restarts'} scatter by {100 * statistics.stdev(ratios):.2g}%"
        count = _about(needed(ratios, looks=looks, margin=margin))
        duel.warnings.append(f"{ended}{scatter}, so a difference of {100 * margin:.2g}% would need {count} restarts.")


def _about(count: int) -> str:
    """So many restarts, in words: their scatter is known to two digits at best."""
    if count > MANY:
        return f"more than {MANY}"
    return f"about {count if count < 100 else round(count, -1)}"


def log_ratios(names: list[str], restarts: list[Restart]) -> dict[tuple[str, str], list[float]]:
    """Of every pair of sides, the answer of each restart."""
    pairs = itertools.combinations(enumerate(names), 2)
    return {(a, b): [r.log_ratio(i, j) for r in restarts] for (i, a), (j, b) in pairs}
