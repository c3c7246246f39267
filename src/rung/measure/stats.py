"""Intervals for one stream of times and for the ratio of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rung.measure.distributions import normal_cdf, normal_quantile, student_cdf, student_quantile

# Samples whose smallest and largest hold the median in 1 - 2 / 2**6 of all cases, which is 95 % or more. Those of fewer do not.
FEWEST = 6


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
    if len(x) >= 10:
        low, middle, high = np.percentile(x, [10, 50, 90])
        x = np.clip(x, middle - 1.5 * (high - low), middle + 1.5 * (high - low))
    return _worth(x)


def _worth(x: np.ndarray) -> float:
    n = len(x)
    x = x - x.mean()
    variance = float(x @ x)
    if n < 4 or variance == 0:
        return float(n)
    # All lags at once: the autocorrelation is the inverse transform of the power spectrum. The zeros behind the samples, at least as
    # many as there are, keep its ends from meeting. What rounding leaves of a sum of zero counts as zero.
    spectrum = np.fft.rfft(x, 1 << (2 * n - 1).bit_length())
    correlations = np.fft.irfft(spectrum * spectrum.conj())[:n] / variance
    last = n // 2 - 1
    first_of_pairs = correlations[1:last:2]
    pairs = first_of_pairs + correlations[2 : last + 1 : 2][: len(first_of_pairs)]
    ends = np.flatnonzero(pairs <= 1e-12)
    total = float(pairs[: ends[0]].sum() if len(ends) else pairs.sum())
    return max(1.0, min(float(n), n / (1 + 2 * total)))


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median and its interval from order statistics: how much the share of samples below the median varies by
    chance says how far from the middle the interval's ends lie.

    In a correlated stream this share varies as that of fewer samples does: as many as its own correlation says, which
    is that of the samples' sides, whatever their sizes. It is looked at from the ends, too: a stream of two levels has its
    median within one of them, and how it changes between them shows only from outside of it. The number is an estimate,
    and too high where it is small: hence Student's quantile with a quarter as many degrees of freedom.
    """
    x = np.asarray(samples, dtype=float)
    if len(x) == 0:
        raise ValueError("no samples")
    ordered = np.sort(x)
    middle = float(np.median(ordered))
    half = _half_width(x <= middle, confidence)
    return Interval(middle, _end(x, ordered, -half, confidence), _end(x, ordered, half, confidence))


def _end(x: np.ndarray, ordered: np.ndarray, away: float, confidence: float) -> float:
    """One end of the median's interval, moved out (from one half by `away`, a share) until it is far enough as seen from there."""
    while True:
        end = _quantile(ordered, 0.5 + away)
        seen = _half_width(x <= end if away > 0 else x < end, confidence)
        if seen <= abs(away):
            return end
        away = math.copysign(seen, away)


def _half_width(below: np.ndarray, confidence: float) -> float:
    """Of the interval of the share of samples below, were it one half."""
    count = max(2.0, _worth(below))
    return student_quantile(max(1.0, count / 4), 0.5 + confidence / 2) * 0.5 / math.sqrt(count)


def _quantile(ordered: np.ndarray, share: float) -> float:
    """The order statistic there, or the next one away from the median."""
    at = share * len(ordered)
    return float(ordered[min(len(ordered) - 1, math.ceil(at)) if share > 0.5 else max(0, math.floor(at))])


def trend(samples: Sequence[float]) -> float | None:
    """By what share the median of the second half of a stream differs from that of the first; None where that may be chance
    (one time in a thousand it is not).

    With a trend there is no one median to be known within an interval: `median_interval` takes the trend for noise, and
    covers its middle for certain.
    """
    x = np.asarray(samples, dtype=float)
    n = len(x) // 2
    if n < 10:
        return None
    below = x <= np.median(x)
    halves = below[:n], below[-n:]
    counts = [max(2.0, _worth(_without_slope(half))) for half in halves]  # a slope is no noise here
    error = math.sqrt(sum(half.var() / count for half, count in zip(halves, counts, strict=True)))
    apart = abs(float(halves[0].mean() - halves[1].mean()))
    first, second = float(np.median(x[:n])), float(np.median(x[-n:]))
    if first <= 0 or first == second or apart <= student_quantile(sum(counts) / 2, 0.9995) * error:
        return None
    return second / first - 1


def _without_slope(x: np.ndarray) -> np.ndarray:
    along = np.linspace(-1, 1, len(x))
    flat: np.ndarray = x - along * (along @ x) / (along @ along)
    return flat


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
    out = math.floor(len(walsh) / 2 - normal_quantile(0.5 + confidence / 2) * _signed_rank_error(n))
    value = float(np.median(walsh))
    return (
        Interval(value, float(walsh[out]), float(walsh[-1 - out])) if out >= 0 else Interval(value, -math.inf, math.inf)
    )


def signed_rank_above(values: Sequence[float], shift: float) -> float:
    """The one-sided p-value of "the centre is above `shift`", as small as the evidence for it is strong. Values that are as far from it
    share the mean of their ranks: which of them came first says nothing."""
    x = np.asarray(values, dtype=float) - shift
    n = len(x)
    _, place, count = np.unique(np.abs(x), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    above = float(ranks[x > 0].sum() + ranks[x == 0].sum() / 2)
    return normal_cdf(-(above - n * (n + 1) / 4) / _signed_rank_error(n))


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
    return student_cdf(n - 1, -away / error)


def t_interval(values: Sequence[float], confidence: float) -> Interval:
    """Student's interval for the mean of a few independent values; infinite for fewer than two."""
    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < 2:
        return Interval(float(x.mean()), -math.inf, math.inf)
    half = student_quantile(n - 1, 0.5 + confidence / 2) * float(x.std(ddof=1)) / math.sqrt(n)
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half)


@dataclass(frozen=True)
class Method:
    """A way to judge independent log-ratios: `interval(values, confidence)` and the one-sided p-value
    `above(values, shift)`."""

    interval: Callable[[Sequence[float], float], Interval]
    above: Callable[[Sequence[float], float], float]


STUDENT = Method(t_interval, t_above)  # for a few restarts
SIGNED_RANK = Method(signed_rank_interval, signed_rank_above)  # for many rounds of one process
