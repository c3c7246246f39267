"""Intervals for one stream of times and for the ratio of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True)
class Interval:
    """A figure and its confidence interval, in the figure's own unit."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def effective_count(samples: Sequence[float] | np.ndarray) -> float:
    """How many independent samples these are worth: n / (1 + 2 * sum of autocorrelations).

    Autocorrelations are summed by Geyer's initial positive sequence (1992): pairs, up to the first pair
    whose sum is not positive. What lies far outside of the central 80 % is clipped: rare spikes come one by one, and
    would hide how slowly everything else changes.
    """
    x = np.asarray(samples, dtype=float)
    n = len(x)
    if n >= 10:
        low, middle, high = np.percentile(x, [10, 50, 90])
        x = np.clip(x, middle - 1.5 * (high - low), middle + 1.5 * (high - low))
    x = x - x.mean()
    variance = float(x @ x)
    if n < 4 or variance == 0:
        return float(n)
    total = 0.0
    for k in range(1, n // 2 - 1, 2):
        pair = float(x[:-k] @ x[k:] + x[: -k - 1] @ x[k + 1 :]) / variance
        if pair <= 0:
            break
        total += pair
    return max(1.0, min(float(n), n / (1 + 2 * total)))


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median and its interval from order statistics, with the number of samples replaced by the effective number,
    so that a correlated stream gets a wider one.

    The effective number is an estimate, and too high where it is small: hence Student's quantile with half as many
    degrees of freedom, and an allowance of one sample.
    """
    x = np.sort(np.asarray(samples, dtype=float))
    n = len(x)
    if n == 0:
        raise ValueError("no samples")
    count = max(2.0, effective_count(samples))
    quantile = float(special.stdtrit(max(1.0, count / 2), 0.5 + confidence / 2))
    half = quantile * 0.5 / math.sqrt(count) * (1 + 1 / count)
    low, high = max(0, math.floor((0.5 - half) * n)), min(n - 1, math.ceil((0.5 + half) * n))
    return Interval(float(np.median(x)), float(x[low]), float(x[high]))


def hodges_lehmann(differences: Sequence[float]) -> float:
    """The median of all pairwise means (Walsh averages): as efficient as the mean, as robust as the median."""
    x = np.asarray(differences, dtype=float)
    i, j = np.triu_indices(len(x))
    return float(np.median((x[i] + x[j]) / 2))


def signed_rank_interval(values: Sequence[float], confidence: float) -> Interval:
    """The Hodges-Lehmann estimate with the interval that inverts Wilcoxon's signed-rank test (normal approximation,
    for ten values or more): keeps its promise for tails so heavy that Student's interval is blind. Infinite where
    there are too few values for the confidence."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    i, j = np.triu_indices(n)
    walsh = np.sort((x[i] + x[j]) / 2)
    out = math.floor(len(walsh) / 2 - float(special.ndtri(0.5 + confidence / 2)) * _signed_rank_error(n))
    value = float(np.median(walsh))
    return (
        Interval(value, float(walsh[out]), float(walsh[-1 - out])) if out >= 0 else Interval(value, -math.inf, math.inf)
    )


def signed_rank_above(values: Sequence[float], shift: float) -> float:
    """The one-sided p-value of "the centre is above `shift`", as small as the evidence for it is strong."""
    x = np.asarray(values, dtype=float) - shift
    n = len(x)
    ranks = np.argsort(np.argsort(np.abs(x))) + 1.0
    return float(
        special.ndtr(-(ranks[x > 0].sum() + ranks[x == 0].sum() / 2 - n * (n + 1) / 4) / _signed_rank_error(n))
    )


def _signed_rank_error(n: int) -> float:
    return math.sqrt(n * (n + 1) * (2 * n + 1) / 24)


def t_above(values: Sequence[float], shift: float) -> float:
    """The one-sided p-value of "the mean is above `shift`"; 1 for fewer than two values."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < 2:
        return 1.0
    error = float(x.std(ddof=1)) / math.sqrt(n)
    away = float(x.mean()) - shift
    if error == 0:
        return 0.5 if away == 0 else float(away < 0)
    return float(special.stdtr(n - 1, -away / error))


def t_interval(values: Sequence[float], confidence: float) -> Interval:
    """Student's interval for the mean of a few independent values; infinite for fewer than two."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < 2:
        return Interval(float(x.mean()), -math.inf, math.inf)
    half = float(special.stdtrit(n - 1, 0.5 + confidence / 2)) * float(x.std(ddof=1)) / math.sqrt(n)
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half)


@dataclass(frozen=True)
class Method:
    """A way to judge independent log-ratios: `interval(values, confidence)` and the one-sided p-value
    `above(values, shift)`."""

    interval: Callable[[Sequence[float], float], Interval]
    above: Callable[[Sequence[float], float], float]


STUDENT = Method(t_interval, t_above)  # for a few restarts
SIGNED_RANK = Method(signed_rank_interval, signed_rank_above)  # for many rounds of one process
