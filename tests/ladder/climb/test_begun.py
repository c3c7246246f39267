"""What has no verdict yet, on disk: read back as it was, and no error where it is damaged."""

import random
import re
from pathlib import Path

import pytest
from made_up import PASSED, STEP, know, leave, state

from rung.ladder.answers import Verified
from rung.ladder.climb.attempt import begun_rung
from rung.ladder.climb.begun import FILE, Begun, forget, keep, keep_verified, read_begun, same
from rung.ladder.climb.checks import checks_of
from rung.ladder.climb.state import State
from rung.measure import CLIMB, Restart, judge
from rung.records.measured import Witness
from rung.records.record import record_of
from rung.timing.ab_run import ABRun


def begun() -> Begun:
    ab_run = ABRun(restarts=[Restart(((STEP, STEP / 2, STEP / 2, STEP),) * 4)], samples=[{"best": [STEP], "candidate": [STEP / 2]}],
                blocks={"best": [(1.0, 2.0)]}, witness=Witness(failures=[]))  # fmt: skip
    return Begun("02-sdpa", ["compile", "sdpa"], "compile", ab_run, "sdpa", prepared_seconds=12.5, shapes={1: ab_run.restarts}, failed={2: ("best", "no")})  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> State:
    return state(tmp_path)


def test_it_is_read_back_as_it_was(made: State) -> None:
    keep(made, "attempt", begun())
    assert read_begun(made.run) == {"attempt": begun()}
    assert same(made, "attempt", ["compile", "sdpa"], "compile") == begun()
    assert same(made, "attempt", ["compile", "sdpa"], "baseline") is None
    assert same(made, "attempt", ["compile"], "compile") is None
    forget(made, "attempt")
    assert read_begun(made.run) == {}


def test_what_one_restart_says_is_no_obstacle(made: State) -> None:
    """Its interval has no ends, and a file has no word for that. What follows from the restarts is asked anew."""
    compared = begun()
    compared.ab_run.comparison = judge([r.log_ratio() for r in compared.ab_run.restarts], looks=CLIMB, last=True)
    keep(made, "attempt", compared)
    assert read_begun(made.run) == {"attempt": begun()}


def test_a_precision_that_was_verified_is_not_asked_again(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record_of(Verified, PASSED)
    keep(made, "attempt", begun())
    keep_verified(made, ["compile", "sdpa"], {"exact": found})
    keep_verified(made, ["compile"], {"bf16": found})
    made.begun = read_begun(made.run)
    made.facts.own_precision = "exact"
    made.pool = None  # type: ignore[assignment]  # no worker is started
    tasks = checks_of(made, ["compile", "sdpa"], "03-sdpa")
    assert [(task.name, task.done, task.answers) for task in tasks] == [
        ("03-sdpa-verify-exact", True, {"verify": found})
    ]


def test_damage_costs_what_was_measured_and_nothing_else(made: State) -> None:
    keep(made, "attempt", begun())
    path, moments = made.run.directory / FILE, random.Random(1)
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(moments.randint(1, 8)):
            damaged[moments.randrange(len(damaged))] = moments.randrange(256)
        path.write_bytes(damaged[: moments.randint(0, len(damaged))] if moments.random() < 0.3 else damaged)
        assert isinstance(read_begun(made.run), dict)
    for hole in ('"rounds":[]', '"rounds":[[0.0,1.0,1.0,1.0]]', '"rounds":[[1.0]]', '"rounds":[[-1.0,1.0,1.0,1.0]]'):
        made.begun = {"attempt": begun()}
        keep(made, "attempt", begun())
        path.write_text(re.sub(r'"rounds":\s*\[.*?\]\s*\]', hole, path.read_text(), count=1, flags=re.DOTALL))
        assert read_begun(made.run) == {}
    path.write_text("[1, 2]")
    assert read_begun(made.run) == {}


def test_what_the_budget_cut_short_is_gone_on_with_in_another_sitting_and_not_in_this_one(made: State) -> None:
    know(made, own_precision="exact", mode="train", optimizer_is_fused=False, matches={})
    keep(
        made, "attempt", Begun("01-fused-optimizer", ["fused-optimizer"], "baseline", begun().ab_run, "fused-optimizer")
    )
    found = begun_rung(made)
    assert found is not None
    assert found.name == "fused-optimizer"
    made.cut.add("fused-optimizer")
    assert begun_rung(made) is None
    made.cut.clear()
    made.kept = ["tf32"]  # the best is another one
    assert begun_rung(made) is None


def test_there_must_be_time_for_what_is_gone_on_with(made: State) -> None:
    know(made, own_precision="exact", mode="train", optimizer_is_fused=False, matches={})
    keep(
        made, "attempt", Begun("01-fused-optimizer", ["fused-optimizer"], "baseline", begun().ab_run, "fused-optimizer")
    )
    assert begun_rung(leave(made, 0.0)) is None
