"""Predictions against what was measured: how far off, in points of the gain."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from rung.rungs import Prediction


def error(attempt: Mapping[str, Any]) -> float | None:
    """The distance of the predicted gain from the measured one, in points of the step's time: a rung that was to give
    2x, which spares 50 % of it, and gives 1.6x, which spares 37.5 %, is off by 12.5; one that takes many times as long counts as off
    by the whole step, 100. None where nothing was decided."""
    comparison, told = attempt.get("comparison"), attempt.get("prediction")
    if not comparison or not told or attempt.get("cut"):
        return None
    return min(100.0, abs(100 * (1 / Prediction(**told).value - 1 / comparison["speedup"]["value"])))


def summary(attempts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all decided attempts and by rung: `median_error` in points, how many, how many inside of their range."""
    errors: dict[str, list[float]] = {}
    inside = 0
    for attempt in attempts:
        off = error(attempt)
        if off is not None:
            errors.setdefault(attempt["rung"], []).append(off)
            inside += attempt.get("forecast") == "inside"
    every = [e for found in errors.values() for e in found]
    return {
        "median_error": statistics.median(every) if every else None,
        "decided": len(every),
        "inside": inside,
        "by_rung": {name: statistics.median(found) for name, found in errors.items()},
    }
