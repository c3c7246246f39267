"""The decision: right about large effects, silent about none, honest about what it cannot know."""

import math
import random

from rung.measure import LOOKS, Restart, decide, median_interval, steady_from
from rung.measure.stats import effective_count, hodges_lehmann


def restart(ratio: float, noise: float, rng: random.Random, layout: float = 0.0) -> Restart:
    luck = math.exp(rng.gauss(0, layout))

    def t(x: float) -> float:
        return x * math.exp(rng.gauss(0, noise))

    return Restart(tuple((t(100.0), t(100 / ratio * luck), t(100 / ratio * luck), t(100.0)) for _ in range(6)))


def answer(ratio: float, seed: int, layout: float = 0.005) -> str:
    rng, restarts = random.Random(seed), []
    while True:
        restarts.append(restart(ratio, 0.01, rng, layout))
        said = decide(restarts)
        if said and said.final:
            return said.answer


def test_a_large_gain_needs_two_restarts_only() -> None:
    rng = random.Random(1)
    said = decide([restart(2.0, 0.002, rng) for _ in range(2)])
    assert said is not None
    assert said.final
    assert said.answer == "faster"
    assert said.speedup.low < 2.0 < said.speedup.high


def test_equal_programs_are_rarely_called_different_and_five_percent_is_mostly_found() -> None:
    assert sum(answer(1.0, s) != "undecided" for s in range(400)) <= 28
    assert sum(answer(1.05, s) == "faster" for s in range(100)) >= 95


def test_one_restart_claims_nothing() -> None:
    said = decide([restart(3.0, 0.001, random.Random(2))], last=True)
    assert said is not None
    assert said.answer == "undecided"
    assert said.speedup.high == math.inf


def test_no_answer_between_the_planned_looks() -> None:
    rng = random.Random(3)
    assert LOOKS[0][0] == 2
    assert decide([restart(1.5, 0.01, rng) for _ in range(3)]) is None


def test_the_median_interval_widens_for_a_correlated_stream() -> None:
    rng = random.Random(4)
    white = [rng.gauss(100, 1) for _ in range(400)]
    state, slow = 0.0, []
    for _ in range(400):
        state = 0.97 * state + rng.gauss(0, 0.25)
        slow.append(100 + state)
    assert effective_count(slow) < 0.3 * effective_count(white)
    a, b = median_interval(white), median_interval(slow)
    assert b.high - b.low > a.high - a.low


def test_hodges_lehmann_ignores_one_wild_value() -> None:
    assert abs(hodges_lehmann([0.01] * 9 + [5.0]) - 0.01) < 0.01


def test_steady_state_is_found_after_a_step_and_refused_on_a_late_one() -> None:
    rng = random.Random(5)
    early = [130.0 + rng.gauss(0, 0.5) for _ in range(30)] + [100.0 + rng.gauss(0, 0.5) for _ in range(170)]
    found = steady_from(early)
    assert found is not None
    assert 28 <= found <= 32
    late = [100.0 + rng.gauss(0, 0.5) for _ in range(180)] + [130.0 + rng.gauss(0, 0.5) for _ in range(20)]
    assert steady_from(late) is None
    assert steady_from([100.0 + rng.gauss(0, 0.5) for _ in range(50)]) == 3
