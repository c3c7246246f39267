"""What is said of one stream: figures with intervals that hold, nothing that the samples cannot support."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.measure.noise import explain, grows
from rung.measure.stats import median_interval, trend
from rung.measure.summary import percentile, samples_for, summarize


def stream(n: int, seed: int = 0, spread: float = 1.0) -> list[float]:
    rng = random.Random(seed)
    return [100 + rng.gauss(0, spread) for _ in range(n)]


def test_percentiles_appear_when_enough_samples_support_them() -> None:
    assert (samples_for(0.5), samples_for(0.9), samples_for(0.99)) == (1, 64, 662)
    assert percentile(stream(661), 0.99) is None
    found = percentile(stream(662), 0.99)
    assert found is not None
    assert found.low <= found.value <= found.high
    assert summarize(stream(9)).mean is None
    assert summarize(stream(63)).p90 is None
    assert summarize(stream(64)).p90 is not None


def test_the_intervals_cover_the_truth_nineteen_times_in_twenty() -> None:
    inside = {"median": 0, "mean": 0, "p90": 0}
    truth = {"median": 100.0, "mean": 100.0, "p90": 100 + 1.2816}
    for seed in range(300):
        found = summarize(stream(200, seed))
        for name, true in truth.items():
            inside[name] += getattr(found, name).low <= true <= getattr(found, name).high
    assert all(0.91 <= k / 300 <= 0.99 for k in inside.values()), inside


@given(st.lists(st.floats(min_value=1, max_value=1e12), min_size=1, max_size=80))
def test_any_stream_has_a_summary_in_order(samples: list[float]) -> None:
    found = summarize(samples)
    assert found.min <= found.median.low <= found.median.value <= found.median.high <= found.max
    assert found.std >= 0
    assert math.isfinite(found.std)
    assert 1 <= found.effective_count <= found.count == len(samples)
    explain(samples, always=True)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (stream(100) + [400.0] * 3, "3 of 103 steps take up to 4.0× the median"),
        ([*stream(100), 400.0], "1 of 101 steps takes 4.0× the median and causes most"),
        ([x * (1.3 if k // 10 % 2 else 1.0) for k, x in enumerate(stream(100))], "two levels"),
        ([x * (1 + 0.005 * k) for k, x in enumerate(stream(100))], "slower"),
        ([x * (1.5 - 0.005 * k) for k, x in enumerate(stream(100))], "faster"),
        (stream(100, spread=20.0), "without a pattern"),
    ],
)
def test_noise_is_explained_by_what_makes_it(samples: list[float], says: str) -> None:
    found = explain(samples)
    assert any(says in text for text in found), found


def test_a_load_that_comes_and_goes_is_no_warm_up_that_was_too_short() -> None:
    loads = [1.3, 1.3, 1.0, 1.0, 1.0, 1.2, 1.0, 1.4]  # by eighths: the last quarter is as slow as the first
    samples = [x * loads[8 * k // 100] for k, x in enumerate(stream(100))]
    assert not any("first quarter" in text for text in explain(samples, always=True))


def test_a_quiet_stream_needs_no_explanation() -> None:
    assert explain(stream(100)) == []


def test_growth_is_told_from_a_pool_that_fills() -> None:
    assert grows([100, 110, 120, 130, 140, 150]) == pytest.approx(0.5)
    assert grows([100, 150, 150, 150, 150, 150]) is None
    assert grows([100, 110, 105, 120, 130, 140]) is None
    assert grows([100, 100, 100, 100, 100]) is None


def test_the_interval_of_a_correlated_stream_covers_its_median() -> None:
    inside, rng = 0, random.Random(4)
    for _ in range(200):
        x, level = list[float](), rng.gauss(0, 1)
        for _ in range(1200):
            level = 0.95 * level + rng.gauss(0, math.sqrt(1 - 0.95**2))
            x.append(100 + level)
        found = median_interval(x)
        inside += found.low <= 100 <= found.high
    assert 0.90 <= inside / 200 <= 0.99


def test_a_trend_is_told_from_chance() -> None:
    assert sum(trend(stream(400, seed)) is not None for seed in range(200)) <= 2
    for seed in range(20):
        found = trend([x * (1 + 0.02 * k / 400) for k, x in enumerate(stream(400, seed))])
        assert found is not None
        assert 0.005 < found < 0.015
    assert trend([100.0] * 40) is None
    assert trend([1.0, 2.0]) is None
