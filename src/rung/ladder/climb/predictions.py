"""Predictions against what was measured: how far off, in points of the gain."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from rung.records.climb import Attempt, Predicted
from rung.rungs import Prediction


def of(attempt: Attempt) -> Prediction | None:
    """What an attempt was predicted to give; None where nothing was, or no more than that is known."""
    told = attempt.prediction
    if told is None or told.low is None or told.high is None:
        return None
    return Prediction(told.low, told.high, {part: share or 0.0 for part, share in told.shares.items()})


def error(attempt: Attempt) -> float | None:
    """The distance of the predicted gain from the measured one, in points of the step's time: a rung that was to give
    2x, which spares 50 % of it, and gives 1.6x, which spares 37.5 %, is off by 12.5; one that takes many times as long counts as off
    by the whole step, 100. None where nothing was decided."""
    comparison, told = attempt.comparison, of(attempt)
    if not comparison or not told or attempt.cut:
        return None
    return min(100.0, abs(100 * (1 / told.value - 1 / comparison.speedup.value)))


def summary(attempts: Iterable[Attempt]) -> Predicted:
    """Over all decided attempts and by rung."""
    errors: dict[str, list[float]] = {}
    inside = 0
    for attempt in attempts:
        off = error(attempt)
        if off is not None:
            errors.setdefault(attempt.rung, []).append(off)
            inside += attempt.forecast == "inside"
    every = [e for found in errors.values() for e in found]
    return Predicted(
        median_error=statistics.median(every) if every else None,
        decided=len(every),
        inside=inside,
        by_rung={name: statistics.median(found) for name, found in errors.items()},
    )
