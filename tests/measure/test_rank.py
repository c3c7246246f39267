"""More than two sides: no more false alarms than for two, and what differs is still found."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.measure import COMPARE, ROUNDS, SIGNED_RANK, Ranking, interleaved, judge, rank
from rung.measure.stats import STUDENT, signed_rank_above, signed_rank_interval, t_above, t_interval


def ratios(times: dict[str, float], n: int, seed: int, noise: float = 0.01) -> dict[tuple[str, str], list[float]]:
    """n restarts of sides whose true log-times are given, each with luck of its own."""
    rng = random.Random(seed)
    seen = [{name: t + rng.gauss(0, noise) for name, t in times.items()} for _ in range(n)]
    return {(a, b): [s[a] - s[b] for s in seen] for a, b in itertools.combinations(times, 2)}


def ranked(times: dict[str, float], seed: int, **how: Any) -> Ranking:
    for n, _ in COMPARE:
        found = rank(ratios(times, n, seed), looks=COMPARE, **how)
        assert found is not None
        if found.final:
            break
    return found


def test_equal_sides_are_rarely_told_apart_however_many_there_are() -> None:
    equal = dict.fromkeys("ABCDE", 0.0)
    wrong = sum(any(p.answer in ("faster", "slower") for p in ranked(equal, s).pairs) for s in range(200))
    assert wrong / 200 <= 0.08  # ten pairs at 5 % each would give 25 % or more


def test_what_differs_is_ranked_and_what_is_the_same_shares_a_rank() -> None:
    found = ranked({"A": 0.0, "B": 0.0, "C": -0.2, "D": 0.3}, 1, margin=0.05)
    assert found.final
    assert not found.cut
    assert found.ranks == {"A": 2, "B": 2, "C": 1, "D": 4}
    answers = {(p.a, p.b): p.answer for p in found.pairs}
    assert answers["A", "B"] == "same"
    assert answers["A", "C"] == "faster"
    assert answers["A", "D"] == "slower"


def test_a_ranking_of_two_decides_as_a_comparison_does() -> None:
    for seed, effect in itertools.product(range(30), (0.0, 0.01)):
        x = ratios({"A": 0.0, "B": effect}, 10, seed)
        two, many = judge(x["A", "B"], looks=COMPARE, margin=0.01), rank(x, looks=COMPARE, margin=0.01)
        assert two is not None
        assert many is not None
        assert many.pairs[0].answer == two.answer
        assert many.pairs[0].speedup == two.speedup


def test_an_interval_leaves_one_out_exactly_where_the_verdict_says_so() -> None:
    for seed in range(60):
        found = ranked({"A": 0.0, "B": 0.01, "C": 0.02, "D": 0.02}, seed)
        for p in found.pairs:
            outside = p.speedup.low > 1 or p.speedup.high < 1
            assert outside == (p.answer in ("faster", "slower"))


def test_no_answer_between_the_planned_looks_but_one_when_time_is_up() -> None:
    x = ratios({"A": 0.0, "B": 0.0, "C": 0.0}, 7, 1)
    assert rank(x, looks=COMPARE) is None
    found = rank(x, looks=COMPARE, last=True)
    assert found is not None
    assert found.final
    assert found.cut


def test_one_restart_decides_no_pair_of_many() -> None:
    one = {("A", "B"): [0.3], ("A", "C"): [-0.1], ("B", "C"): [-0.4]}
    found = rank(one, looks=COMPARE, margin=0.01, last=True)
    assert found is not None
    assert [p.answer for p in found.pairs] == ["undecided"] * 3
    assert found.ranks == {"A": 1, "B": 1, "C": 1}
    assert found.cut


@given(st.lists(st.floats(-1, 1), min_size=10, max_size=60), st.floats(-0.5, 0.5))
def test_a_p_value_and_an_interval_tell_the_same_story(values: list[float], shift: float) -> None:
    for interval, above in ((t_interval, t_above), (signed_rank_interval, signed_rank_above)):
        p = above(values, shift)
        assert 0 <= p <= 1
        found = interval(values, 0.95)
        assert found.low <= found.value <= found.high
        if interval is t_interval and found.low > shift:
            assert p <= 0.025 + 1e-9


def test_of_equal_values_it_does_not_count_which_came_first() -> None:
    x = [0.03] * 75 + [-0.03] * 75
    assert signed_rank_above(x, 0) == signed_rank_above(x[::-1], 0) == pytest.approx(0.5)
    for order in (x, x[::-1]):
        none = [0.0] * len(x)
        found = rank(
            {("A", "B"): order, ("A", "C"): none, ("B", "C"): none}, looks=ROUNDS, margin=0.01, method=SIGNED_RANK
        )
        assert found is not None
        assert found.pairs[0].answer not in ("faster", "slower")


def test_the_signed_rank_interval_covers_where_a_few_values_are_wild() -> None:
    inside = widths = 0.0
    for seed in range(300):
        rng = random.Random(seed)
        x = [rng.gauss(0, 1) * (20 if rng.random() < 0.1 else 1) for _ in range(40)]
        found = signed_rank_interval(x, 0.95)
        inside += found.low <= 0 <= found.high
        widths += (found.high - found.low) / (t_interval(x, 0.95).high - t_interval(x, 0.95).low)
    assert 0.91 <= inside / 300 <= 0.985
    assert widths / 300 < 0.7
    assert signed_rank_interval([1.0, 2.0], 0.99).high == float("inf")


def test_rounds_of_one_process_are_judged_by_ranks() -> None:
    rng = random.Random(3)
    x = [0.02 + rng.gauss(0, 0.02) * (10 if rng.random() < 0.1 else 1) for _ in range(150)]
    found = judge(x, looks=ROUNDS, method=SIGNED_RANK, margin=0.001)
    assert found is not None
    assert found.answer == "faster"
    assert 0 < found.visible < 0.02
    by_t = judge(x, looks=ROUNDS, method=STUDENT, margin=0.001)
    assert by_t is not None
    assert found.visible < by_t.visible


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_side_is_visited_twice_a_round_and_drift_cancels(n: int) -> None:
    order: list[int] = []

    def block(side: int) -> list[float]:
        order.append(side)
        return [100.0 + len(order)]

    restart, samples = interleaved([lambda s=s: block(s) for s in range(n)], 2 * n, lots=random.Random(n))
    assert [len(s) for s in samples] == [4 * n] * n
    for k in range(2 * n + 1):
        one = order[2 * n * k : 2 * n * (k + 1)]
        assert one == one[::-1]
        assert sorted(one) == sorted([*range(n)] * 2)
    assert {tuple(order[2 * n * k : 2 * n * k + n]) for k in range(2 * n + 1)} <= set(itertools.permutations(range(n)))
    for a, b in itertools.combinations(range(n), 2):
        assert abs(restart.log_ratio(a, b)) < 1e-3
