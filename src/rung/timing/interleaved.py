"""An interleaved A/B run: fresh processes of all sides, alternating blocks, until the answer is clear."""

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
)
from rung.measure.futility import FUTILE, chance, needed
from rung.side import Setup, Side
from rung.timing.ab_run import ABRun
from rung.timing.worker_group import WorkerGroup

progress = logging.getLogger(__name__)

MANY = 1000  # restarts, above which nobody asks how many exactly


def run_interleaved(
    setup: Setup,
    sides: Mapping[str, Side],
    *,
    log: str,
    left: Callable[[], float],
    looks: Looks = CLIMB,
    margin: float | None = None,
    seen: Callable[[ABRun], None] = lambda ab_run: None,
) -> ABRun:
    """Restarts all sides until the comparison is decided, or `left()` seconds are over. Two sides with a margin also end at a look after which
    the restarts that fit would hardly decide.

    looks, margin: as in `rung.measure.decide`; seen: called after every restart. Raises SideFailed when a worker of a side raises, hangs or
    dies.
    """
    ab_run = ABRun()
    took: list[float] = []  # seconds of each restart
    while True:
        began = time.monotonic()
        with ExitStack() as stack:
            number = len(ab_run.restarts) + 1
            progress.info("restart %d: loading, compiling and warming up", number)
            group = WorkerGroup(setup, sides, f"{log}-{number}", stack)
            group.warm(setup.limits.prepare)
            progress.info("restart %d: timing", number)
            # Without the shortest steps: their ratio lies nearer to 1, which would make it too easy to show that sides are equally fast.
            ab_run.restarts.append(replace(group.timed(ab_run), shortest=()))
            if setup.launcher:
                ab_run.ranks = max(len(worker.hosts) for worker in group.workers.values())
            seen(ab_run)
        took.append(time.monotonic() - began)
        # The first restart compiles what the next ones find in a cache, so it counts only while it is the only one.
        last = left() < 1.2 * max(took[1:] or took)
        if len(sides) == 2:
            ab_run.comparison = decide(ab_run.restarts, looks=looks, margin=margin, last=last)
            if ab_run.comparison and margin:
                fit = looks[-1][0]
                if left() < math.inf:
                    fit = min(fit, len(ab_run.restarts) + math.ceil(left() / min(took[1:] or took)))
                _end_in_time(ab_run, looks, margin, fit)
        else:
            ab_run.ranking = rank(log_ratios(list(sides), ab_run.restarts), looks=looks, margin=margin, last=last)
        said = ab_run.comparison or ab_run.ranking
        if said and said.final:
            return ab_run


def _end_in_time(ab_run: ABRun, looks: Looks, margin: float, fit: int) -> None:
    """Ends a comparison that more restarts, `fit` in all, would hardly decide; says of one that ends without a verdict how many would."""
    found, ratios = ab_run.comparison, [restart.log_ratio() for restart in ab_run.restarts]
    if not found or found.answer != "undecided" or len(ratios) < 2:
        return
    ended = ""
    if not found.final and chance(ratios, looks=looks, margin=margin, most=fit) < FUTILE:
        ab_run.comparison = replace(found, final=True, cut=True)
        ended = f"ended after {len(ratios)} restarts: the {fit - len(ratios)} more that fit would decide it with a chance below {FUTILE:.0%}. "
    if ab_run.comparison and ab_run.comparison.final:
        scatter = f"{'Restarts' if ended else 'restarts'} scatter by {100 * statistics.stdev(ratios):.2g}%"
        count = _about(needed(ratios, looks=looks, margin=margin))
        ab_run.warnings.append(f"{ended}{scatter}, so a difference of {100 * margin:.2g}% would need {count} restarts.")


def _about(count: int) -> str:
    """So many restarts, in words: their scatter is known to two digits at best."""
    if count > MANY:
        return f"more than {MANY}"
    return f"about {count if count < 100 else round(count, -1)}"


def log_ratios(names: list[str], restarts: list[Restart]) -> dict[tuple[str, str], list[float]]:
    """Of every pair of sides, the answer of each restart."""
    pairs = itertools.combinations(enumerate(names), 2)
    return {(a, b): [r.log_ratio(i, j) for r in restarts] for (i, a), (j, b) in pairs}
