"""What deciding a rung is guessed to take."""

from pathlib import Path

import pytest
from made_up import rung, state, tried

from rung.ladder.climb.cost import restart, seconds
from rung.ladder.climb.state import State

GIB = 1 << 30
# Three restarts of 10 ms a step: loaded, 7 rounds of 60 steps, profiled.
ON_A_CPU = 3 * (10 + 7 * 60 * 0.01 + 4 + 12 * 0.01)


@pytest.fixture
def climb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """On a GPU whose machine has cores to spare."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    made = state(tmp_path, loading=10.0)
    made.facts |= {"gpu": True, "own_precision": "tf32"}
    made.breakdown["kernels"] = 2000
    monkeypatch.setattr(type(made.run), "read", lambda run, name: {"environment": {"device": {"memory": 80 * GIB}}})
    return made


def test_a_small_step_is_guessed_to_be_prepared_soon(tmp_path: Path) -> None:
    made, long = state(tmp_path / "large", loading=10.0), rung("long", 0.5, prepares=80)
    made.breakdown["kernels"] = 4000
    assert seconds(made, long) == pytest.approx(ON_A_CPU + 10 + 0.9 + 3.1 * 80)
    made.breakdown["kernels"] = 1000
    assert seconds(made, long) == pytest.approx(ON_A_CPU + 10 + 0.9 + 3.1 * 40)
    made.breakdown["kernels"] = 10
    assert seconds(made, long) == pytest.approx(ON_A_CPU + 10 + 0.9 + 3.1 * 20)
    made.breakdown |= {"kernels": 0.0, "gemms": 200.0}  # on a CPU
    assert seconds(made, long) == pytest.approx(ON_A_CPU + 10 + 0.9 + 3.1 * 40)


def test_what_a_restart_takes_to_time_is_by_the_length_of_a_step(climb: State) -> None:
    climb.baseline["time"] = {"value": 1e9}
    assert restart(climb) == pytest.approx(10 + 4 * 4 + 1 + 12)  # no fewer than 4 rounds of 4 steps


def test_what_is_loaded_at_once_is_waited_for_once(climb: State) -> None:
    long, blocks = rung("long", 0.5, prepares=20), 3 * (8 * 24 * 0.01 + 1 + 12 * 0.01)
    verified = 10 + 0.9 + 1.3 * 20
    assert seconds(climb, long) == pytest.approx(10 + blocks + 20 + verified)  # all restarts, then both precisions
    climb.baseline["memory"] = {"allocated": 14 * GIB}  # two pairs, and one verification
    assert seconds(climb, long) == pytest.approx(2 * 10 + blocks + 1.4 * 20 + 2 * verified)
    climb.baseline["memory"] = {"allocated": 30 * GIB}
    assert seconds(climb, long) == pytest.approx(3 * 10 + blocks + 1.8 * 20 + 2 * verified)


def test_what_the_last_attempt_took_is_the_pace_of_the_next(climb: State) -> None:
    long = rung("long", 0.5, prepares=20)
    first = {"best": 1.0, "candidate": 31.0}
    tried(climb, "a", "reverted", seconds=90.0, restarts=[{}] * 3, first_run_seconds=first, pay_back={"seconds": 30.0})
    assert seconds(climb, long) == pytest.approx(60 + 20 + 1.3 * 20)
