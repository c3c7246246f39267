"""Changes of level in a history: found at their place, rarely where there is none, and never by the order of equal values."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.measure.change_points import FEWEST, change_points

finite = st.floats(-1e6, 1e6)


def false_alarms(n: int, histories: int, kind: str, rate: float) -> int:
    generator = np.random.default_rng(n)
    found = 0
    for _ in range(histories):
        error = generator.uniform(0.3, 3, n) if kind == "uneven" else np.ones(n)
        noise = generator.standard_t(2, n) if kind == "heavy tails" else generator.normal(size=n)
        found += bool(change_points(noise * error, error, false_alarms=rate))
    return found


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "uneven"])
def test_where_nothing_changed_alarms_are_as_rare_as_was_asked(kind: str) -> None:
    """200 histories: within four standard deviations of what is allowed, and within three below, or the test would be blind."""
    for n, rate in ((10, 0.05), (40, 0.2)):
        found, deviation = false_alarms(n, 200, kind, rate), math.sqrt(200 * rate * (1 - rate))
        assert 200 * rate - 3 * deviation <= found <= 200 * rate + 4 * deviation


@given(
    before=st.integers(5, 20), after=st.integers(5, 20), shift=st.sampled_from([-8.0, 8.0]), seed=st.integers(0, 10**6)
)
def test_a_clear_shift_is_found_at_its_place(before: int, after: int, shift: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=before + after)
    x[before:] += shift
    found = change_points(x, np.ones(len(x)), seed=seed)
    nearest = min(found, key=lambda change: abs(change.at - before))
    assert abs(nearest.at - before) <= 1
    assert nearest.p <= 0.05
    assert (nearest.after > nearest.before) == (shift > 0)


def test_two_changes_are_found_with_their_levels() -> None:
    x = np.concatenate([np.zeros(12), np.full(10, 5.0), np.full(14, 2.0)])
    x += np.random.default_rng(1).normal(size=len(x)) * 0.1
    found = change_points(x, np.full(len(x), 0.1))
    assert [change.at for change in found] == [12, 22]
    assert [round(change.before) for change in found] == [0, 5]
    assert [round(change.after) for change in found] == [5, 2]


@given(
    values=st.lists(finite, max_size=30),
    errors=st.lists(st.floats(0, 1e6), min_size=30, max_size=30),
    seed=st.integers(0, 100),
)
def test_any_history_has_an_answer_that_is_in_order_and_repeats(values: list[float], errors: list[float], seed: int) -> None:  # fmt: skip
    error = errors[: len(values)]
    found = change_points(values, error, seed=seed)
    assert found == change_points(values, error, seed=seed)
    edges = [0, *(change.at for change in found), len(values)]
    assert all(b - a >= FEWEST for a, b in pairwise(edges) if found)
    assert all(0 < change.p <= 0.05 and math.isfinite(change.before + change.after) for change in found)


@given(
    scale=st.sampled_from([1e-200, 1e-9, 1e9, 1e200]),
    offset=st.sampled_from([0.0, 1.0, 50.0]),
    seed=st.integers(0, 1000),
)
def test_units_and_a_common_offset_change_nothing(scale: float, offset: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    error = generator.uniform(0.5, 2, 24)
    x = generator.normal(size=24) * error + np.where(np.arange(24) < 14, 0, 6)
    assert [c.at for c in change_points(x, error)] == [c.at for c in change_points(scale * (x + offset), scale * error)]


def test_a_measurement_that_is_hardly_known_makes_no_change() -> None:
    """Without their errors, three such values at the end look like a new level."""
    x = np.random.default_rng(3).normal(size=20) * 0.05
    x[-3:] += (4.0, 5.0, 4.5)
    error = np.full(20, 0.05)
    error[-3:] = 40.0
    assert [change.at for change in change_points(x)] == [17]
    assert change_points(x, error) == []


def test_a_few_wide_intervals_do_not_hide_a_change_of_the_others() -> None:
    """Their errors are larger than all that is between the others, of which two alone are known a hundred times better."""
    x = [87.3, 87.1, 88.0, 87.5, 87.4, 120.0, 125.0, 178.0, 180.0, 170.0, 176.0, 113.0, 112.0]
    error = [0.1, 8.0, 8.0, 8.0, 8.0, 15.0, 0.4, 0.4, 20.0, 40.0, 25.0, 0.1, 0.1]
    assert [change.at for change in change_points(np.log(x), np.array(error) / x)][:1] == [5]


def test_few_or_equal_values_have_no_change() -> None:
    assert change_points([]) == change_points([1.0]) == change_points([1.0, 1, 9, 9, 9]) == []
    assert change_points([2.0] * 50) == []


@pytest.mark.parametrize(
    ("values", "errors"),
    [([1.0, math.nan], None), ([1.0, 2.0], [0.1]), ([1.0, 2.0], [0.1, -1.0]), ([1.0, math.inf], [0.1, 0.1])],
)
def test_what_is_no_history_is_refused(values: list[float], errors: list[float] | None) -> None:
    with pytest.raises(ValueError, match="error"):
        change_points(values, errors)
