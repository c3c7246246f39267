"""How many workers are loaded side by side, by the memory that their steps were seen to take."""

from pathlib import Path

import pytest
from made_up import state, tried

from rung.ladder.climb.room import beside_the_baseline, beside_the_best, of_verifying
from rung.ladder.climb.state import State

GIB = 1 << 30


@pytest.fixture
def climb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    made = state(tmp_path)
    made.facts["gpu"] = True
    manifest = {"environment": {"device": {"memory": 80 * GIB}}}
    monkeypatch.setattr(type(made.run), "read", lambda run, name: manifest)
    made.baseline["memory"] = {"allocated": 13 * GIB, "reserved": 14 * GIB}
    return made


def test_what_was_seen_of_both_sides_says_how_many_fit(climb: State) -> None:
    assert beside_the_best(climb).together == 2  # 14 and 18.2, with 2 for each context, into 76
    assert of_verifying(climb).together == 1  # a float64 reference is larger than any side
    tried(climb, "bf16", "kept", memory={"best": {"reserved": 14 * GIB}, "candidate": {"reserved": 5 * GIB}})
    assert beside_the_best(climb).together == 3
    assert beside_the_baseline(climb).together == 3
    assert beside_the_baseline(climb, 2.0).together == 1
    tried(climb, "b", "reverted", memory={"best": {"reserved": 5 * GIB}, "candidate": {"reserved": 70 * GIB}})
    assert beside_the_best(climb).together == 3


def test_it_is_one_at_a_time_where_cores_are_few_or_the_device_compiles(
    climb: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    climb.baseline["memory"] = {"allocated": GIB}
    assert beside_the_best(climb).together == 3
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert beside_the_best(climb).together == 1
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    climb.facts["gpu"] = False
    assert beside_the_best(climb).together == 1
