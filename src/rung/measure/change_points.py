"""Where a history of measurements changes its level: weighted CUSUM, a permutation test and binary segmentation.

Each measurement has a value and the standard error of that value. Its weight is w = 1 / (error² + spread), where `spread` is the
variance between measurements that the errors do not explain: the one at which sum(w * (x - mean)²) is n - 1, at least 0 (Paule &
Mandel, Journal of Research of the NBS 87, 1982). It does not depend on the order, so that the test below stays exact.

The statistic of a change before place k is the standardized difference between the weighted means of both sides,

    |mean(after) - mean(before)| * sqrt(W(before) * W(after) / W)        W: sums of weights

which is the cumulative sum of w * (x - mean) up to k (CUSUM: Page, Biometrika 41, 1954), scaled so that its variance is the same at
every k (Sen & Srivastava, Annals of Statistics 3, 1975). The largest over all k is compared with the largest of histories in
another order: values and their weights are shuffled together, and p = (1 + as large) / (1 + shuffles), which is never 0 (Phipson &
Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010). If nothing changed, every order is as likely, whatever the distribution is: a history
without a change is told to have one in a share `false_alarms` of all cases, at most. Both sides of a change are searched in turn (binary
segmentation: Vostrikova, Soviet Math. Doklady 24, 1981).

Measurements that depend on those before them, as on a machine that warms up over days, are not as likely in every order. There, more
changes are found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

FALSE_ALARMS = 0.05
FEWEST = 3  # measurements on each side of a change: one alone is an outlier as well
SHUFFLES = 999
_LEAST_WEIGHT = 1e-9
_AT_ONCE = 1 << 20  # values that are shuffled at a time, which bounds the memory


@dataclass(frozen=True)
class ChangePoint:
    """at: the first measurement of the new level; p: of the permutation test; before, after: weighted means of the levels on both sides,
    up to the next change."""

    at: int
    p: float
    before: float
    after: float


def change_points(
    values: Sequence[float],
    errors: Sequence[float] | None = None,
    *,
    false_alarms: float = FALSE_ALARMS,
    seed: int = 0,
) -> list[ChangePoint]:
    """The changes of level in a history, in order of time.

    Args:
        values: In any unit, oldest first. Give logarithms where ratios matter, as of times.
        errors: Standard error of each value, in the same unit. 0 where it is not known. None: all 0.
        false_alarms: The largest share of histories without a change in which one may be found.
        seed: Of the shuffles. The same history and seed give the same answer.

    Raises:
        ValueError: Values or errors that are not finite, errors below 0 or of another number.
    """
    x = np.asarray(values, dtype=float)
    error = np.zeros(len(x)) if errors is None else np.asarray(errors, dtype=float)
    if x.ndim != 1 or error.shape != x.shape:
        raise ValueError("give one error for each value")
    if not (np.isfinite(x).all() and np.isfinite(error).all() and (error >= 0).all()):
        raise ValueError("values and errors must be finite, and errors not below 0")
    found: dict[int, float] = {}
    generator = np.random.default_rng(seed)
    left = [(0, len(x))]
    while left:
        begin, end = left.pop()
        change = _largest_change(x[begin:end], error[begin:end], false_alarms, generator)
        if change:
            k, found[begin + k] = change
            left += [(begin + k, end), (begin, begin + k)]
    edges = [0, *sorted(found), len(x)] if found else []
    levels = [_mean(x[a:b], error[a:b]) for a, b in pairwise(edges)]
    return [ChangePoint(at, found[at], levels[k], levels[k + 1]) for k, at in enumerate(edges[1:-1])]


def _weights(x: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Relative to the largest, so that no unit overflows them, and above 0, so that every value has a place in its level."""
    reach = float(np.ptp(x)) or 1.0
    variance = (error / reach) ** 2 + _spread(x / reach, error / reach)
    least = float(variance.min())
    return np.maximum(least / variance, _LEAST_WEIGHT) if least > 0 else np.ones(len(x))


def _spread(x: np.ndarray, error: np.ndarray) -> float:
    """Paule and Mandel's variance between measurements. The sum falls as it grows, from where it is to the square of the range."""
    high = float(np.ptp(x)) ** 2
    low = _LEAST_WEIGHT * high
    if high == 0 or _weighted_squares(x, error**2 + low) <= len(x) - 1:
        return 0.0
    for _ in range(40):
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if _weighted_squares(x, error**2 + middle) > len(x) - 1 else (low, middle)
    return high


def _weighted_squares(x: np.ndarray, variance: np.ndarray) -> float:
    weights = 1 / variance
    away = x - weights @ x / weights.sum()
    return float(weights @ away**2)


def _mean(x: np.ndarray, error: np.ndarray) -> float:
    return float(np.average(x, weights=_weights(x, error)))


def _largest_change(
    x: np.ndarray, error: np.ndarray, false_alarms: float, generator: np.random.Generator
) -> tuple[int, float] | None:
    """(where the largest change begins, its p), None where it may be chance."""
    n = len(x)
    if n < 2 * FEWEST or np.ptp(x) == 0:
        return None
    weights = _weights(x, error)
    scaled = (x - x.mean()) / np.ptp(x)
    statistic = _statistics(scaled[None], weights[None])[0]
    k, as_large = int(statistic.argmax()), 0
    limit = statistic[k] * (1 - 1e-9)  # orders that differ by rounding alone are as large
    chunk = max(1, _AT_ONCE // n)
    for first in range(0, SHUFFLES, chunk):
        count = min(chunk, SHUFFLES - first)
        order = generator.permuted(np.tile(np.arange(n), (count, 1)), axis=1)
        as_large += int((_statistics(scaled[order], weights[order]).max(axis=1) >= limit).sum())
        if as_large > math.floor(false_alarms * (1 + SHUFFLES)):
            return None  # it cannot become rare any more
    p = (1 + as_large) / (1 + SHUFFLES)
    return (FEWEST + k, p) if p <= false_alarms else None


def _statistics(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The statistic of each row (a history) for each place that leaves FEWEST on both sides."""
    before, sums = weights.cumsum(axis=1), (weights * x).cumsum(axis=1)
    total, all_sums = before[:, -1:], sums[:, -1:]
    at = slice(FEWEST - 1, x.shape[1] - FEWEST)
    before, sums = before[:, at], sums[:, at]
    cusum = sums - before / total * all_sums
    found: np.ndarray = np.abs(cusum) * np.sqrt(total / (before * (total - before)))
    return found
