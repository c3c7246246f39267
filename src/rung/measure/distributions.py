"""Student's t, the normal and the binomial distribution: the few values of them that intervals and tests need.

Each function takes and gives plain floats. Relative errors stay below 1e-12 (tests/measure/test_distributions.py).
SciPy has all of them, and takes 140 MB.

Sources:
- DLMF: NIST Digital Library of Mathematical Functions, https://dlmf.nist.gov, by the number of the formula.
- Abramowitz and Stegun: Handbook of Mathematical Functions (1964), by the number of the formula.
- DiDonato and Morris: "Significant digit computation of the incomplete beta function ratios",
  ACM Transactions on Mathematical Software 18 (1992) 360.
- Lentz: "Generating Bessel functions in Mie scattering calculations using continued fractions",
  Applied Optics 15 (1976) 668.
- Wichura: "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 37 (1988) 477.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_STANDARD = NormalDist()
_EPSILON = 2.0**-52


def normal_cdf(z: float) -> float:
    """P(Z <= z) by the complementary error function (DLMF 7.2.2), which keeps its digits in the lower tail."""
    return math.erfc(-z / math.sqrt(2)) / 2


def normal_quantile(p: float) -> float:
    """The z with P(Z <= z) = p, for 0 < p < 1: Wichura's algorithm, as in Python's own `statistics`."""
    return _STANDARD.inv_cdf(p)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(at most k of n succeed), each with the probability p, 0 < p < 1. The sum of its terms: for a small k."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    success, failure = math.log(p), math.log1p(-p)
    # By logarithms: neither a large binomial coefficient nor a small power leaves the range of floats.
    terms = (math.exp(math.log(math.comb(n, j)) + j * success + (n - j) * failure) for j in range(k + 1))
    return math.fsum(terms)


def student_cdf(df: float, t: float) -> float:
    """P(T <= t) for `df` degrees of freedom, a whole number or not."""
    _check(df)
    if math.isnan(t):
        return math.nan
    centre, tail = _halves(df, abs(t), abs(t) * _density(df, abs(t)))
    return tail if t < 0 else 0.5 + centre


@lru_cache(maxsize=1024)
def student_quantile(df: float, p: float) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1.

    Newton's method for log P as a function of log t. Above the median both P(0 < T <= t) and P(T > t) are concave on
    these scales. So from its second step on it nears the root from one side, and it cannot miss it.
    """
    _check(df)
    if not 0 < p < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, not {p}")
    if p == 0.5:
        return 0.0
    away = abs(p - 0.5)
    by_centre = away < 0.25  # the smaller of the two has all its digits
    wanted = away if by_centre else min(p, 1 - p)
    t = _near(df, abs(normal_quantile(p)))
    for _ in range(100):
        slope = t * _density(df, t)
        centre, tail = _halves(df, t, slope)
        found, slope = (centre, slope) if by_centre else (tail, -slope)
        step = math.log(wanted / found) * found / slope
        t *= math.exp(step)
        if abs(step) < 1e-7:  # the next one would be about its square
            break
    return math.copysign(t, p - 0.5)


def _check(df: float) -> None:
    if not 0 < df < math.inf:
        raise ValueError(f"a positive, finite number of degrees of freedom is needed, not {df}")


def _near(df: float, z: float) -> float:
    """A first guess at Student's quantile from the normal one (Abramowitz and Stegun 26.7.5): good for a large `df`."""
    squared = z * z
    first = (squared + 1) / 4
    second = ((5 * squared + 16) * squared + 3) / 96
    third = (((3 * squared + 19) * squared + 17) * squared - 15) / 384
    correction = (first + (second + third / df) / df) / df
    return z * (1 + max(0.0, correction))  # Student's tails are the heavier ones


def _halves(df: float, t: float, slope: float) -> tuple[float, float]:
    """P(0 < T <= t) and P(T > t), for t >= 0; slope: t times the density there. The smaller one has all its digits.

    They are halves of the incomplete beta function I_x(1/2, df/2), with x = t^2 / (df + t^2), and of what it leaves
    of 1 (DLMF 8.17).
    """
    squared = t * t
    if squared * (df + 2) < 3 * df:  # x is below its mean: here the series converges fast, above it the fraction
        centre = slope * _series(df, squared)
        return centre, 0.5 - centre
    tail = slope / (2 * _fraction(df, squared)) if slope > 0 else 0.0
    return 0.5 - tail, tail


def _series(df: float, squared: float) -> float:
    """The hypergeometric series of DLMF 8.17.8, whose terms are positive."""
    x = squared / (df + squared)
    most = (df + 1) / 2
    total = term = 1.0
    k = 0
    while term > _EPSILON * total / 8:
        term *= x * (most + k) / (1.5 + k)
        total += term
        k += 1
    return total


def _fraction(df: float, squared: float) -> float:
    """The continued fraction b0 + a1 / (b1 + a2 / (b2 + ...)) of DiDonato and Morris (their equation 9), evaluated by
    Lentz's method, for I_x(a, 1/2) with a = df / 2 and x = df / (df + t^2)."""
    a, x = df / 2, df / (df + squared)
    first = a * (squared - 1) / (df + squared) + 1  # a (1 - x) - x / 2 + 1, where the difference would cost digits
    fraction = above = a * first / (a + 1)
    below = 0.0
    for m in range(1, 1000):
        at = a + 2 * m
        numerator = (a + m - 1) * (a + m - 0.5) * m * (0.5 - m) * (x / (at - 1)) ** 2
        denominator = m + m * (0.5 - m) * x / (at - 1) + (a + m) * (first + m * (2 - x)) / (at + 1)
        above = denominator + numerator / above
        below = 1 / (denominator + numerator * below)
        fraction *= above * below
        if abs(above * below - 1) < _EPSILON:
            break
    return fraction


def _density(df: float, t: float) -> float:
    """The derivative of P(T <= t)."""
    a = df / 2
    if a < 100:
        peak = math.gamma(a + 0.5) / math.gamma(a) / math.sqrt(math.pi * df)
    else:
        # DLMF 5.11.13: the quotient of two gammas of this size would lose digits. The next term is below 1e-14.
        r = 1 / a
        series = 1 + r * (-1 / 8 + r * (1 / 128 + r * (5 / 1024 + r * (-21 / 32768 - r * 399 / 262144))))
        peak = series / math.sqrt(2 * math.pi)
    return peak * math.exp(-(a + 0.5) * math.log1p(t * t / df))
