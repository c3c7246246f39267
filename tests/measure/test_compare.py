"""The decision: right about large effects, silent about none, honest about what it cannot know."""

import math
import random
from typing import Any

import pytest

from rung.measure import CLIMB, COMPARE, PATIENT, Looks, Restart, decide, median_interval, steady_from
from rung.measure.stats import effective_count, hodges_lehmann


def restart(ratio: float, noise: float, rng: random.Random, layout: float = 0.0) -> Restart:
    luck = math.exp(rng.gauss(0, layout))

    def t(x: float) -> float:
        return x * math.exp(rng.gauss(0, noise))

    return Restart(tuple((t(100.0), t(100 / ratio * luck), t(100 / ratio * luck), t(100.0)) for _ in range(6)))


def answer(ratio: float, seed: int, layout: float = 0.005, **how: Any) -> str:
    rng, restarts = random.Random(seed), []
    while True:
        restarts.append(restart(ratio, 0.01, rng, layout))
        said = decide(restarts, **how)
        if said and said.final:
            return said.answer


def test_a_large_gain_needs_three_restarts_only() -> None:
    rng = random.Random(1)
    said = decide([restart(2.0, 0.002, rng) for _ in range(3)])
    assert said is not None
    assert said.final
    assert said.answer == "faster"
    assert said.speedup.low < 2.0 < said.speedup.high


def test_equal_programs_are_rarely_called_different_and_five_percent_is_mostly_found() -> None:
    assert sum(answer(1.0, s) != "undecided" for s in range(400)) <= 28
    assert sum(answer(1.05, s) == "faster" for s in range(100)) >= 95


def test_sameness_is_shown_and_not_assumed() -> None:
    how = {"looks": COMPARE, "margin": 0.01}
    assert sum(answer(1.0, s, **how) == "same" for s in range(60)) >= 54
    assert sum(answer(1.02, s, **how) == "same" for s in range(60)) <= 3
    assert sum(answer(0.98, s, **how) == "slower" for s in range(60)) >= 57
    said = decide([restart(1.0, 0.001, random.Random(1)) for _ in range(2)], margin=0.01, last=True)
    assert said is not None
    assert said.answer in ("undecided", "same")


def test_the_smallest_visible_change_shrinks_with_evidence_and_is_found_four_times_in_five() -> None:
    def visible(n: int, seed: int = 0) -> float:
        rng = random.Random(seed)
        said = decide([restart(1.0, 0.01, rng, 0.01) for _ in range(n)], looks=COMPARE, margin=0.001)
        assert said is not None
        return said.visible

    assert visible(30) < visible(10) < visible(5)
    typical = sorted(visible(20, s) for s in range(30))[15]
    found = 0
    for seed in range(200):
        rng = random.Random(1000 + seed)
        said = decide([restart(1 + typical, 0.01, rng, 0.01) for _ in range(20)], looks=COMPARE, margin=0.001)
        assert said is not None
        found += said.answer == "faster"
    assert 0.7 <= found / 200 <= 0.9


def test_one_restart_claims_nothing() -> None:
    said = decide([restart(3.0, 0.001, random.Random(2))], last=True)
    assert said is not None
    assert said.answer == "undecided"
    assert said.cut
    assert said.speedup.high == math.inf
    hopeless = decide([restart(0.5, 0.001, random.Random(2))], last=True)
    assert hopeless is not None
    assert hopeless.cut  # what looks bad once is given up at a planned look, and this is none
    early = decide([restart(1.02, 0.001, random.Random(3), 0.05) for _ in range(3)], last=True)
    assert early is not None
    assert early.cut == (early.answer == "undecided" and early.speedup.value > 1)


def test_no_answer_between_the_planned_looks() -> None:
    rng = random.Random(3)
    assert CLIMB[0][0] == 3
    assert decide([restart(1.5, 0.01, rng) for _ in range(4)]) is None


@pytest.mark.parametrize("looks", [CLIMB, PATIENT, COMPARE])
def test_all_looks_together_spend_five_percent_of_false_alarms(looks: Looks) -> None:
    assert sum(spent for _, spent in looks) <= 0.05 + 1e-12
    assert [n for n, _ in looks] == sorted({n for n, _ in looks})


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


@pytest.mark.parametrize(
    ("usual", "shortest", "claimed"),
    [
        (84.5, 1.3, 1.3),  # the untouched model's threads waited for each other
        (84.5, 0.8, 1.0),
        (0.066, 0.9, 0.9),  # the candidate's did
        (0.066, 1.3, 1.0),
        (1.1, 1.2, 1.1),
    ],
)
def test_where_threads_waited_no_more_is_claimed_than_usual_and_shortest_steps_show(
    usual: float, shortest: float, claimed: float
) -> None:
    rounds = ((usual, 1.0, 1.0, usual),) * 8
    assert math.exp(Restart(rounds).log_ratio()) == pytest.approx(usual)
    waited = Restart(rounds, (shortest, 1.0))
    assert math.exp(waited.log_ratio()) == pytest.approx(claimed)
    assert waited.log_ratio(1, 0) == pytest.approx(-waited.log_ratio())


def test_steady_state_is_found_after_a_step_and_refused_on_a_late_one() -> None:
    rng = random.Random(5)
    early = [130.0 + rng.gauss(0, 0.5) for _ in range(30)] + [100.0 + rng.gauss(0, 0.5) for _ in range(170)]
    found = steady_from(early)
    assert found is not None
    assert 28 <= found <= 36
    late = [100.0 + rng.gauss(0, 0.5) for _ in range(180)] + [130.0 + rng.gauss(0, 0.5) for _ in range(20)]
    assert steady_from(late) is None
    assert steady_from([100.0 + rng.gauss(0, 0.5) for _ in range(50)]) == 3
