"""Predictions against what was measured: how far off, in points of the gain."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any


def error(attempt: Mapping[str, Any]) -> float | None:
    """The distance of the predicted gain (the middle of its range) from the measured one, in points: a rung that
    was to give 1.30x and gives 1.25x is off by 5. None where nothing was decided."""
    comparison, told = attempt.get("comparison"), attempt.get("prediction")
    if not comparison or not told or attempt.get("cut"):
        return None
    return abs(100 * ((told["low"] * told["high"]) ** 0.5 - comparison["speedup"]["value"]))


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
