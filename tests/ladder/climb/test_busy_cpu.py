"""What CPU time says where wall time does not decide, and how noisy the machine was."""

import math
from collections.abc import Sequence

import pytest
from attempt_records import attempt

from rung.ladder.climb.answer import noise
from rung.ladder.climb.busy_cpu import clocks_disagree, doubt_by_cpu_time, doubt_of_record
from rung.ladder.climb.verdict import rejection
from rung.measure import CLIMB, Comparison, Restart, judge
from rung.measure.core_time import CoreTime
from rung.records.climb import Noise
from rung.rungs import BY_NAME
from rung.timing.ab_run import ABRun

CALM, BUSY = {"best": CoreTime(100, 1), "candidate": CoreTime(100, 2)}, {"best": CoreTime(100, 100)}


def restarts(*gains: float) -> list[Restart]:
    return [Restart(((gain, 1.0, 1.0, gain),) * 4) for gain in gains]


def ab_run(wall: Sequence[float], cpu: Sequence[float], cores: dict[str, CoreTime]) -> ABRun:
    made = ABRun(restarts=restarts(*wall), cpu_restarts=restarts(*cpu), cores=cores)
    made.comparison = judge([restart.log_ratio() for restart in made.restarts], looks=CLIMB, last=True)
    return made


SCATTERED, SURE = (2.4, 0.9, 1.5), (1.45, 1.5, 1.55)


@pytest.mark.parametrize(
    ("wall", "cpu", "cores", "stays"),
    [
        (SCATTERED, SURE, BUSY, True),
        (SCATTERED, SURE, CALM, False),  # what scatters then is no waiting for cores
        (SCATTERED, SCATTERED, BUSY, False),  # neither clock shows it
        (SCATTERED, (1.0, 1.001, 0.999), BUSY, False),
        (SCATTERED, (1.03, 1.031, 1.029), BUSY, False),  # too little
        ((0.9, 1.1, 1.0), SURE, BUSY, False),  # less work, in as much time
        ((0.8, 0.81, 0.79), SURE, BUSY, False),  # wall time refutes it
        (SCATTERED, (), BUSY, False),
    ],
)
def test_a_recipe_stays_provisional_where_both_clocks_speak_for_it(
    wall: Sequence[float], cpu: Sequence[float], cores: dict[str, CoreTime], stays: bool
) -> None:
    made = ab_run(wall, cpu, cores)
    assert made.comparison is not None
    seen = made.by_cpu_time()
    doubt = doubt_by_cpu_time(made.comparison, seen, made.waited.values())
    assert bool(doubt) is stays
    if stays:
        assert "waited for a CPU core 50% of the time" in doubt
        assert "1.50× (" in doubt
    record = attempt(comparison=made.comparison, cpu_time=seen, waited=made.waited)
    assert doubt_of_record(record) == doubt  # which is what is on disk


@pytest.mark.parametrize(
    ("wall", "cpu", "cores", "disagree"),
    [(0.9, 1.5, BUSY, True), (1.4, 1.0, BUSY, True), (1.4, 1.5, BUSY, False), (0.9, 1.5, CALM, False)],
)
def test_one_restart_decides_nothing_alone_where_its_clocks_disagree(
    wall: float, cpu: float, cores: dict[str, CoreTime], disagree: bool
) -> None:
    assert clocks_disagree(ab_run([wall], [cpu], cores)) is disagree


def compared(visible: float) -> Comparison:
    made = judge([0.1, 0.1], looks=CLIMB, last=True)
    assert made is not None
    return Comparison(made.answer, made.speedup, 3, 0.98, None, visible, True)


def test_the_noise_of_a_climb_is_that_of_its_attempts() -> None:
    attempts = [
        attempt(waited={"best": 0.2, "candidate": 0.4}, comparison=compared(0.1)),
        attempt(waited={"best": 0.6, "candidate": 0.4}, comparison=compared(math.inf)),  # one restart
        attempt(waited={"best": 0.5, "candidate": 0.5}, comparison=compared(0.3)),
        attempt(verdict="inapplicable"),
        attempt(
            waited={}, comparison=compared(0.0), busy="threads waited"
        ),  # what it shows is no difference, each time
    ]
    assert noise(attempts) == Noise(waited=0.6, visible=pytest.approx(0.2))
    assert noise([attempt(waited={}, comparison=None)]) is None
    assert noise([attempt(waited={"best": None})]) is None


@pytest.mark.parametrize(
    ("cpu", "waited", "verdict"),
    [
        ((), (0.5, 0.6), "inconclusive"),
        ((1.3, 1.31, 1.29), (0.5, 0.6), "inconclusive"),
        ((0.8, 0.81, 0.79), (0.5, 0.6), "reverted"),  # more work, too
        ((), (0.1, 0.6), "reverted"),  # it has more threads than there are cores: that is its own
        ((), (0.1, 0.1), "reverted"),
    ],
)
def test_what_was_slower_while_others_took_the_cores_is_not_reverted(
    cpu: Sequence[float], waited: tuple[float, float], verdict: str
) -> None:
    made = ab_run((0.7, 0.71, 0.69), cpu, BUSY)
    assert made.comparison is not None
    shares = dict(zip(("best", "candidate"), waited, strict=True))
    record = attempt(comparison=made.comparison, cpu_time=made.by_cpu_time(), waited=shares, cut=False)
    found = rejection(record, BY_NAME["fused-qkv"], made.comparison, 0.01)
    assert found is not None
    assert found[0] == verdict
    assert ("waited for a CPU core 50% of the time; climb again" in found[1]) == (verdict == "inconclusive")
    assert not record.cut
