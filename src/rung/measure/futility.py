"""Whether it is worth going on: how likely restarts that are still to come would decide a comparison, and how many would.

To stop for futility claims nothing, so it adds no false alarm, and the looks spend what they did. It costs power alone: of a comparison
that would have been decided with a probability below FUTILE. Given n restarts, the mean of m of them is predicted by Student's
distribution with n - 1 degrees of freedom around the mean so far (before the first restart no effect was likelier than another). Its
standard error is s (m - n) / m sqrt(1 / (m - n) + 1 / n). A verdict needs that mean to be outside of its interval at m, or within the
margin by its narrower one ("predictive power", Spiegelhalter, Freedman and Blackburn 1986).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rung.measure.compare import Looks
from rung.measure.distributions import student_cdf, student_quantile

FUTILE = 0.05


def chance(log_ratios: Sequence[float], *, looks: Looks, margin: float, most: int) -> float:
    """The probability of a verdict after more restarts, `most` in all. Those of the looks that come are added up, so it is rather too high
    than too low."""
    n, mean, spread = len(log_ratios), statistics.fmean(log_ratios), statistics.stdev(log_ratios)
    if not spread:
        return 1.0
    found = 0.0
    for m, spent in _later(n, looks, most):
        error = spread * (m - n) / m * math.sqrt(1 / (m - n) + 1 / n)
        half = student_quantile(m - 1, 1 - spent / 2) * spread / math.sqrt(m)
        narrow = student_quantile(m - 1, 1 - spent) * spread / math.sqrt(m)
        same = max(0.0, min(half, math.log1p(margin) - narrow))
        ends = (student_cdf(n - 1, (end - mean) / error) for end in (-half, -same, same, half))
        slower, not_same, up_to_same, up_to_half = ends
        found += slower + (up_to_same - not_same) + (1 - up_to_half)
    return min(1.0, found)


def _later(n: int, looks: Looks, most: int) -> list[tuple[int, float]]:
    """The looks after n restarts, the last of them forced at `most`, at what the next planned one may spend."""
    planned = [(m, spent) for m, spent in looks if n < m <= most]
    forced = next((spent for m, spent in looks if m > most), None)
    if forced is None or most <= n or (planned and planned[-1][0] == most):
        return planned
    return [*planned, (most, forced)]


def needed(log_ratios: Sequence[float], *, looks: Looks, margin: float) -> int:
    """About how many restarts that scatter as these do show a difference of the margin: half their interval is no wider then."""
    last, spent = looks[-1]
    half_of_one = student_quantile(last - 1, 1 - spent / 2) * statistics.stdev(log_ratios)
    return max(len(log_ratios) + 1, math.ceil((half_of_one / math.log1p(margin)) ** 2))
