"""Where a stream is warm, which streams never are, and when enough was measured."""

import math
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.measure import collect, median_interval
from rung.measure.stats import effective_count
from rung.measure.steady import steady_from


def stream(log: Callable[[int], float], n: int, seed: int = 0, jitter: float = 0.004) -> list[float]:
    rng = random.Random(seed)
    return [1e6 * math.exp(log(k) + rng.gauss(0, jitter)) * (1.5 if rng.random() < 0.01 else 1) for k in range(n)]


@pytest.mark.parametrize("n", [600, 5000])
def test_warm_up_of_any_form_is_found_within_a_twentieth(n: int) -> None:
    for log, true in (
        (lambda k: 0.0, 0.0),
        (lambda k: 0.3 * max(0.0, 1 - k / (0.2 * n)), 0.2),
        (lambda k: 0.1 * (k < 0.13 * n), 0.13),
        (lambda k: 0.4 if k < 0.1 * n else 0.08 if k < 0.25 * n else 0.0, 0.25),
    ):
        found = steady_from(stream(log, n))
        assert found is not None
        assert abs(found - true * n) <= 0.05 * n


@pytest.mark.parametrize("n", [600, 5000])
def test_what_never_settles_is_refused(n: int) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        walk = [0.0]
        while len(walk) < n:
            walk.append(walk[-1] + rng.gauss(0, 0.1 / math.sqrt(n)))
        late = rng.uniform(0.55, 0.95)
        assert steady_from(stream(lambda k: 0.12 * k / n, n, seed)) is None
        assert steady_from(stream(lambda k, late=late: 0.15 * (k > late * n), n, seed)) is None
        assert steady_from(stream(lambda k: 0.12 * (2.5 * k / n % 1), n, seed)) is None
        assert seed == 7 or steady_from(stream(lambda k, walk=walk: walk[k], n, seed)) is None


def switching(seed: int, dwell: int = 300) -> Callable[[int], list[float]]:
    """A program on a machine with two clocks, 5 % apart: so many calls of 1 ms on each, on average."""
    rng, state = random.Random(seed), [0]

    def block(count: int) -> list[float]:
        out = []
        for _ in range(count):
            state[0] ^= rng.random() < 1 / dwell
            out.append(1e6 * (1.05 if state[0] else 1.0) * math.exp(rng.gauss(0, 0.003)))
        return out

    return block


def test_two_clocks_that_alternate_for_ever_are_steady_and_not_known_too_early() -> None:
    steady = early = 0
    for seed in range(8):
        block, taken = switching(seed), list[float]()
        clock = lambda taken=taken: sum(taken) / 1e9  # noqa: E731
        done = collect(lambda block=block: block(500), precision=0.005, seconds=20, clock=clock, into=taken)
        interval = median_interval(done.kept)
        steady += done.begin is not None
        early += done.reached
        assert done.reached or interval.high > 1.04e6 or interval.low < 1.01e6
    assert steady >= 6
    assert early <= 1


def test_a_quiet_stream_is_done_after_the_least_time() -> None:
    rng, taken = random.Random(1), list[float]()
    done = collect(
        lambda: [1e6 * math.exp(rng.gauss(0, 0.003)) for _ in range(500)],
        precision=0.005,
        seconds=60,
        clock=lambda: sum(taken) / 1e9,
        into=taken,
    )
    assert done.reached
    assert done.begin == 3
    assert 3000 <= len(done.samples) <= 4000


def test_time_that_is_up_ends_it_whatever_is_known() -> None:
    taken: list[float] = []
    done = collect(
        lambda: [1e9 * (1 + 0.05 * len(taken))], precision=0.005, seconds=5, clock=lambda: sum(taken) / 1e9, into=taken
    )
    assert not done.reached
    assert done.begin is None
    assert done.kept == done.samples == taken


def test_samples_of_a_failed_block_are_kept_by_who_asked_for_them() -> None:
    taken: list[float] = []

    def block() -> list[float]:
        if len(taken) > 20:
            raise RuntimeError("out of luck")
        return [1e6] * 10

    with pytest.raises(RuntimeError, match="out of luck"):
        collect(block, precision=0.005, seconds=60, clock=lambda: 0.0, into=taken)
    assert len(taken) == 30


def test_spikes_do_not_hide_how_slowly_a_stream_changes() -> None:
    rng = random.Random(2)
    state, slow = 0.0, []
    for _ in range(4000):
        state = 0.99 * state + rng.gauss(0, 0.14)
        slow.append(100 + state)
    spiky = [x * (1 + rng.expovariate(1 / 0.5)) if rng.random() < 0.02 else x for x in slow]
    assert effective_count(spiky) < 2 * effective_count(slow) < 200


def worth(samples: Sequence[float]) -> float:
    """`effective_count` by its definition, one lag after the other, without what it does against spikes."""
    x = np.asarray(samples) - np.mean(samples)
    n, variance, total = len(x), float(x @ x), 0.0
    if n < 4 or variance == 0:
        return float(n)
    for k in range(1, n // 2 - 1, 2):
        pair = float(x[:-k] @ x[k:] + x[: -k - 1] @ x[k + 1 :]) / variance
        if pair <= 1e-12:
            break
        total += pair
    return max(1.0, min(float(n), n / (1 + 2 * total)))


@given(st.integers(1, 300), st.sampled_from(["white", "walk", "levels", "slope", "step"]), st.integers(0, 1000))
def test_a_stream_is_worth_what_the_definition_says(n: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = {
        "white": rng.normal(size=n),
        "walk": np.cumsum(rng.normal(size=n)),
        "levels": (rng.random(n) < 0.5) * 1.0,
        "slope": np.arange(n) * 1.0,
        "step": (np.arange(n) > n / 2) * 1.0,
    }[kind]
    spread = float(np.subtract(*np.percentile(x, [90, 10])))
    x = np.clip(x, np.median(x) - 1.5 * spread, np.median(x) + 1.5 * spread) if n >= 10 else x
    assert effective_count(x) == pytest.approx(worth(x), rel=1e-6)


def test_many_samples_of_two_levels_are_judged_far_faster_than_lag_by_lag() -> None:
    n = 60_000
    x = np.random.default_rng(0).normal(0, 1, n) + 2.0 * (np.arange(n) > n / 2)
    took = []
    for judge in (effective_count, worth):
        begin = time.perf_counter()
        judge(x)
        took.append(time.perf_counter() - begin)
    assert took[0] < took[1] / 5
