"""All that is said of one stream of times, each figure with its interval or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from rung.measure.distributions import binomial_cdf, student_quantile
from rung.measure.stats import effective_count, median_interval
from rung.records.measured import Interval as Figure
from rung.records.measured import Summary
from rung.records.record import record_of

FLOOR_FOR_MEAN = 10
CHANCE = 0.01  # of a percentile being reported too early


def summarize(samples: Sequence[float]) -> Summary:
    """Median, mean, standard deviation, extremes and percentiles of nanoseconds, with 95 % intervals.

    `mean` is null below 10 samples; a percentile is null below the samples that it needs; intervals count
    correlated samples as the fewer independent ones that they are worth.
    """
    x = np.asarray(samples, dtype=float)
    n = len(x)
    effective = effective_count(samples)
    std = float(x.std(ddof=1)) if n > 1 else 0.0
    mean = None
    if n >= FLOOR_FOR_MEAN:
        half = student_quantile(max(1.0, effective - 1), 0.975) * std / math.sqrt(effective)
        middle = float(x.mean())
        mean = Figure(value=middle, low=max(0.0, middle - half), high=middle + half)  # no step takes less than no time
    return Summary(
        count=n,
        effective_count=effective,
        median=record_of(Figure, median_interval(samples)),
        mean=mean,
        std=std,
        min=float(x.min()),
        max=float(x.max()),
        p50=percentile(samples, 0.5),
        p90=percentile(samples, 0.9),
        p99=percentile(samples, 0.99),
    )


def percentile(samples: Sequence[float], p: float) -> Figure | None:
    """A percentile with its 95 % interval from order statistics; None where the samples cannot support it."""
    n = len(samples)
    if n < samples_for(p):
        return None
    x = np.sort(np.asarray(samples, dtype=float))
    spread = 1.96 * math.sqrt(p * (1 - p) / effective_count(samples))
    low, high = max(0, math.floor((p - spread) * n)), min(n - 1, math.ceil((p + spread) * n))
    return Figure(value=float(np.quantile(x, p)), low=float(x[low]), high=float(x[high]))


@cache
def samples_for(p: float) -> int:
    """How many samples the percentile p needs: the fewest of which more than one lies above it with 99 % certainty
    (MLPerf's early stopping with one query over the latency); 64 for p90, 662 for p99, 1 for the median."""
    n = 1
    while p > 0.5 and binomial_cdf(1, n, 1 - p) > CHANCE:
        n += 1
    return n
