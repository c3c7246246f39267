"""Student's t, the normal and the binomial distribution: as in printed tables, as in closed form, and as SciPy has them."""

import math
import random
from importlib.metadata import version

import pytest
from scipy import special

from rung.measure.distributions import binomial_cdf, normal_cdf, normal_quantile, student_cdf, student_quantile

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: by degrees of freedom, at 0.95, 0.975 and 0.999.
NIST_STUDENT = {
    1: (6.314, 12.706, 318.313),
    2: (2.920, 4.303, 22.327),
    3: (2.353, 3.182, 10.215),
    5: (2.015, 2.571, 5.893),
    10: (1.812, 2.228, 4.143),
    30: (1.697, 2.042, 3.385),
    100: (1.660, 1.984, 3.174),
}


@pytest.mark.parametrize("df", NIST_STUDENT)
def test_students_quantiles_are_those_of_the_printed_table(df: int) -> None:
    for p, printed in zip((0.95, 0.975, 0.999), NIST_STUDENT[df], strict=True):
        # The table's last digit is not always rounded: 318.309 is printed as 318.313.
        assert student_quantile(df, p) == pytest.approx(printed, rel=2e-5, abs=1.1e-3)


def test_the_normal_and_the_binomial_distribution_have_their_known_values() -> None:
    # Abramowitz and Stegun, table 26.1, and exact sums.
    assert normal_cdf(0.5) == pytest.approx(0.691462461274013, abs=1e-15)
    assert normal_cdf(1) == pytest.approx(0.841344746068543, abs=1e-15)
    assert normal_cdf(-3) == pytest.approx(0.001349898031630, abs=1e-15)
    assert normal_quantile(0.975) == pytest.approx(1.959963984540054, abs=1e-15)
    assert normal_quantile(0.995) == pytest.approx(2.575829303548901, abs=1e-15)
    assert binomial_cdf(1, 10, 0.5) == pytest.approx(11 / 1024, rel=1e-14)
    assert binomial_cdf(2, 5, 0.3) == pytest.approx(0.83692, rel=1e-14)
    assert binomial_cdf(10, 10, 0.5) == 1
    assert binomial_cdf(-1, 10, 0.5) == 0


@pytest.mark.parametrize("p", [1e-9, 1e-4, 0.02, 0.3, 0.4999, 0.51, 0.7499, 0.7501, 0.975, 0.9995, 1 - 1e-9])
def test_students_quantiles_are_those_in_closed_form(p: float) -> None:
    """For one, two and four degrees of freedom (Shaw, Journal of Computational Finance 9 (2006) 37)."""
    away, product = p - 0.5, 4 * p * (1 - p)
    four = 4 * math.cos(math.acos(math.sqrt(product)) / 3) / math.sqrt(product)
    assert student_quantile(1, p) == pytest.approx(
        math.copysign(1 / math.tan(math.pi * min(p, 1 - p)), away), rel=1e-11
    )
    assert student_quantile(2, p) == pytest.approx(2 * away * math.sqrt(2 / product), rel=1e-11)
    # Its own difference costs digits near the median.
    assert student_quantile(4, p) == pytest.approx(math.copysign(math.sqrt(four - 4), away), rel=1e-11, abs=1e-12)


def drawn_df(rng: random.Random) -> float:
    """Whole numbers and others, on both sides of where the gamma functions give way to their expansion, too."""
    kinds = (rng.randint(1, 40), rng.uniform(0.3, 3), rng.uniform(190, 210), math.exp(rng.uniform(0, 14)))
    return float(rng.choice(kinds))


def test_students_distribution_is_scipys() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        df, t = drawn_df(rng), rng.choice((-1, 1)) * math.exp(rng.uniform(-8, 3))
        assert student_cdf(df, t) == pytest.approx(float(special.stdtr(df, t)), rel=1e-12, abs=1e-290), (df, t)


def test_students_quantiles_are_scipys() -> None:
    exact = tuple(map(int, version("scipy").split(".")[:2])) >= (
        1,
        16,
    )  # Python 3.10 has an older one, right to ten digits
    rng = random.Random(2)
    for _ in range(3000):
        df, p = (
            drawn_df(rng),
            rng.choice((rng.uniform(0.501, 0.9999), rng.uniform(0, 0.499), 1 - 10 ** rng.uniform(-9, -2))),
        )
        assert student_quantile(df, p) == pytest.approx(float(special.stdtrit(df, p)), rel=1e-11 if exact else 1e-9), (
            df,
            p,
        )


def test_the_normal_and_the_binomial_distribution_are_scipys() -> None:
    rng = random.Random(3)
    for _ in range(1000):
        z, p = rng.uniform(-30, 8), rng.choice((rng.random(), 10 ** rng.uniform(-200, -1)))
        assert normal_cdf(z) == pytest.approx(float(special.ndtr(z)), rel=1e-12), z
        assert normal_quantile(p) == pytest.approx(float(special.ndtri(p)), rel=1e-11, abs=1e-15), p
        k, n, share = rng.randint(0, 6), rng.randint(1, 3000), rng.uniform(1e-6, 0.6)
        assert binomial_cdf(k, n, share) == pytest.approx(float(special.bdtr(k, n, share)), rel=1e-11, abs=1e-290), (
            n,
            share,
        )


@pytest.mark.parametrize("df", [1.0, 2.7, 29.0, 1e6])
def test_students_distribution_is_symmetric_and_its_quantile_goes_the_way_back(df: float) -> None:
    for p in (1e-12, 0.001, 0.25, 0.49, 0.7, 0.99):
        t = student_quantile(df, p)
        assert student_cdf(df, t) == pytest.approx(p, rel=1e-12)
        assert student_cdf(df, -t) == pytest.approx(1 - p, rel=1e-12)
    assert student_quantile(df, 0.5) == 0
    assert student_cdf(df, 0.0) == 0.5


def test_the_ends_of_the_line() -> None:
    assert (student_cdf(3, math.inf), student_cdf(3, -math.inf), student_cdf(3, -1e200)) == (1, 0, 0)
    assert (normal_cdf(math.inf), normal_cdf(-math.inf)) == (1, 0)
    assert math.isnan(student_cdf(3, math.nan))
    assert math.isnan(normal_cdf(math.nan))


@pytest.mark.parametrize(
    ("df", "p"), [(0, 0.9), (-1, 0.9), (math.inf, 0.9), (math.nan, 0.9), (3, 0.0), (3, 1.0), (3, math.nan)]
)
def test_what_has_no_quantile_is_refused(df: float, p: float) -> None:
    with pytest.raises(ValueError, match="needed"):
        student_quantile(df, p)
