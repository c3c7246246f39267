"""Ending a comparison that will not be decided: it claims nothing, loses few verdicts, and saves restarts where there is only noise."""

import random
import statistics
from collections.abc import Callable

import pytest

from rung.measure import COMPARE, judge
from rung.measure.futility import FUTILE, chance, needed

MARGIN = 0.01


def verdict(ratios: list[float], last: bool) -> str:
    """Of a look that ends the comparison; empty elsewhere."""
    said = judge(ratios, looks=COMPARE, margin=MARGIN, last=last)
    return said.answer if said and said.final else ""


def compared(draw: Callable[[], float], most: int) -> tuple[str, int, bool]:
    """(the verdict of a comparison of at most so many restarts that is never ended early, at how many restarts one would have been that
    is, whether that one ended for futility)."""
    ratios: list[float] = []
    ended = 0
    while True:
        ratios.append(draw())
        n = len(ratios)
        if said := verdict(ratios, n == most):
            return said, ended or n, bool(ended)
        if not ended and n in dict(COMPARE) and chance(ratios, looks=COMPARE, margin=MARGIN, most=most) < FUTILE:
            ended = n


@pytest.mark.parametrize("most", [7, 12, 16, 30])
@pytest.mark.parametrize("scatter", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("effect", [0.0, 0.02, 0.1])
def test_of_all_comparisons_few_that_it_ends_would_have_had_a_verdict(most: int, scatter: float, effect: float) -> None:
    rng = random.Random(f"{most} {scatter} {effect}")
    ended = [compared(lambda: rng.gauss(effect, scatter), most) for _ in range(100)]
    assert sum(early and said != "undecided" for said, _, early in ended) <= 100 * FUTILE


def test_noise_alone_takes_fewer_restarts() -> None:
    rng = random.Random(1)
    for most, at_most in ((16, 13.5), (30, 25)):
        taken = [compared(lambda: rng.gauss(0.0, 0.1), most)[1] for _ in range(100)]
        assert statistics.fmean(taken) < at_most


def test_what_can_be_decided_still_has_its_chance() -> None:
    rng = random.Random(2)
    large = [rng.gauss(0.05, 0.03) for _ in range(5)]
    assert chance(large, looks=COMPARE, margin=MARGIN, most=30) > 0.5
    alike = [rng.gauss(0.0, 0.008) for _ in range(5)]
    assert chance(alike, looks=COMPARE, margin=MARGIN, most=30) > 0.5
    assert chance(alike, looks=COMPARE, margin=MARGIN, most=5) == 0.0  # none is to come
    assert chance([0.0] * 5, looks=COMPARE, margin=MARGIN, most=30) == 1.0


def test_so_many_restarts_as_it_names_show_a_difference_of_the_margin() -> None:
    rng = random.Random(3)
    many = needed([rng.gauss(0.0, 0.05) for _ in range(30)], looks=COMPARE, margin=MARGIN)
    said = judge([rng.gauss(0.0, 0.05) for _ in range(many)], looks=COMPARE, margin=MARGIN, last=True)
    assert said
    assert said.speedup.high / said.speedup.value == pytest.approx(1 + MARGIN, rel=0.003)
    assert needed([0.001, 0.002, 0.0], looks=COMPARE, margin=MARGIN) == 4
