"""When a comparison of two sides ends: at a verdict, at the end of its time, or where more restarts would hardly decide it."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rung.measure import COMPARE, Restart
from rung.side import Setup, Side
from rung.timing import interleaved
from rung.timing.ab_run import ABRun

SIDES = {name: Side("nothing") for name in "AB"}


class Drawn:
    """A restart whose times are drawn, in the place of one with workers."""

    ratios: Iterator[float]

    def __init__(self, *_: Any) -> None:
        pass

    def warm(self, _: float) -> None:
        pass

    def timed(self, _: ABRun) -> Restart:
        b = math.exp(-next(self.ratios))
        return Restart(((1.0, b, b, 1.0),))


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ABRun]:
    """What an interleaved run has seen when it ends. fit: how many restarts there is time for, each of which takes half a second."""
    clock = itertools.count()
    monkeypatch.setattr(interleaved, "time", SimpleNamespace(monotonic=lambda: next(clock) / 2))
    monkeypatch.setattr(interleaved, "WorkerGroup", Drawn)

    def run(effect: float, scatter: float, fit: float = math.inf) -> ABRun:
        rng, done = random.Random(5), [0]
        monkeypatch.setattr(Drawn, "ratios", iter(lambda: rng.gauss(effect, scatter), None), raising=False)

        def count(_: ABRun) -> None:
            done[0] += 1

        return interleaved.run_interleaved(
            Setup(None, tmp_path),
            SIDES,
            log="x",
            left=lambda: fit / 2 - done[0] / 2,
            looks=COMPARE,
            margin=0.01,
            seen=count,
        )

    return run


def test_noise_ends_it_before_its_time_and_it_says_how_many_restarts_would_do(ended: Callable[..., ABRun]) -> None:
    ab_run = ended(0.0, 0.2, 13)
    assert ab_run.comparison
    assert (ab_run.comparison.answer, ab_run.comparison.final, ab_run.comparison.cut) == ("undecided", True, True)
    assert len(ab_run.restarts) == 10
    (said,) = ab_run.warnings
    assert said.startswith(
        "ended after 10 restarts: the 3 more that fit would decide it with a chance below 5%. Restarts "
    )
    assert said.endswith(", so a difference of 1% would need more than 1000 restarts.")


@pytest.mark.parametrize(("count", "said"), [(37, "about 37"), (347, "about 350"), (53943, "more than 1000")])
def test_a_number_of_restarts_is_no_more_precise_than_their_scatter(count: int, said: str) -> None:
    assert interleaved._about(count) == said


def test_a_verdict_is_what_it_was_and_nothing_is_said(ended: Callable[..., ABRun]) -> None:
    ab_run = ended(0.1, 0.01)
    assert ab_run.comparison
    assert (ab_run.comparison.answer, len(ab_run.restarts), ab_run.warnings) == ("faster", 5, [])


def test_what_may_still_be_decided_goes_on(ended: Callable[..., ABRun]) -> None:
    ab_run = ended(0.0, 0.015)
    assert len(ab_run.restarts) > 10
    assert not any(said.startswith("ended") for said in ab_run.warnings)
