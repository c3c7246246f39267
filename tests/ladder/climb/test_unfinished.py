"""What has no verdict yet, on disk: read back as it was, and no error where it is damaged."""

import random
import re
from pathlib import Path

import pytest
from made_up import PASSED, STEP, know, leave, state

from rung.ladder.answers import Verified
from rung.ladder.climb.attempt import unfinished_rung
from rung.ladder.climb.checks import checks_of
from rung.ladder.climb.state import State
from rung.ladder.climb.unfinished import FILE, Unfinished, discard, read_unfinished, save, save_verified, unfinished_of
from rung.measure import CLIMB, Restart, judge
from rung.records.measured import Witness
from rung.records.record import record_of
from rung.timing.ab_run import ABRun


def unfinished() -> Unfinished:
    ab_run = ABRun(restarts=[Restart(((STEP, STEP / 2, STEP / 2, STEP),) * 4)], samples=[{"best": [STEP], "candidate": [STEP / 2]}],
                blocks={"best": [(1.0, 2.0)]}, witness=Witness(failures=[]))  # fmt: skip
    return Unfinished("02-sdpa", ["compile", "sdpa"], "compile", ab_run, "sdpa", prepared_seconds=12.5, shapes={1: ab_run.restarts}, failed={2: ("best", "no")})  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> State:
    return state(tmp_path)


def test_it_is_read_back_as_it_was(made: State) -> None:
    save(made, "attempt", unfinished())
    assert read_unfinished(made.run) == {"attempt": unfinished()}
    assert unfinished_of(made, "attempt", ["compile", "sdpa"], "compile") == unfinished()
    assert unfinished_of(made, "attempt", ["compile", "sdpa"], "baseline") is None
    assert unfinished_of(made, "attempt", ["compile"], "compile") is None
    discard(made, "attempt")
    assert read_unfinished(made.run) == {}


def test_what_one_restart_says_is_no_obstacle(made: State) -> None:
    """Its interval has no ends, and a file has no word for that. What follows from the restarts is asked anew."""
    compared = unfinished()
    compared.ab_run.comparison = judge([r.log_ratio() for r in compared.ab_run.restarts], looks=CLIMB, last=True)
    save(made, "attempt", compared)
    assert read_unfinished(made.run) == {"attempt": unfinished()}


def test_a_precision_that_was_verified_is_not_asked_again(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record_of(Verified, PASSED)
    save(made, "attempt", unfinished())
    save_verified(made, ["compile", "sdpa"], {"exact": found})
    save_verified(made, ["compile"], {"bf16": found})
    made.unfinished = read_unfinished(made.run)
    made.facts.own_precision = "exact"
    made.pool = None  # type: ignore[assignment]  # no worker is started
    tasks = checks_of(made, ["compile", "sdpa"], "03-sdpa")
    assert [(task.name, task.done, task.answers) for task in tasks] == [
        ("03-sdpa-verify-exact", True, {"verify": found})
    ]


def test_damage_costs_what_was_measured_and_nothing_else(made: State) -> None:
    save(made, "attempt", unfinished())
    path, moments = made.run.directory / FILE, random.Random(1)
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(moments.randint(1, 8)):
            damaged[moments.randrange(len(damaged))] = moments.randrange(256)
        path.write_bytes(damaged[: moments.randint(0, len(damaged))] if moments.random() < 0.3 else damaged)
        assert isinstance(read_unfinished(made.run), dict)
    for hole in ('"rounds":[]', '"rounds":[[0.0,1.0,1.0,1.0]]', '"rounds":[[1.0]]', '"rounds":[[-1.0,1.0,1.0,1.0]]'):
        made.unfinished = {"attempt": unfinished()}
        save(made, "attempt", unfinished())
        path.write_text(re.sub(r'"rounds":\s*\[.*?\]\s*\]', hole, path.read_text(), count=1, flags=re.DOTALL))
        assert read_unfinished(made.run) == {}
    path.write_text("[1, 2]")
    assert read_unfinished(made.run) == {}


def test_what_the_budget_cut_short_is_gone_on_with_in_another_sitting_and_not_in_this_one(made: State) -> None:
    know(made, own_precision="exact", mode="train", optimizer_is_fused=False, matches={})
    save(
        made,
        "attempt",
        Unfinished("01-fused-optimizer", ["fused-optimizer"], "baseline", unfinished().ab_run, "fused-optimizer"),
    )
    found = unfinished_rung(made)
    assert found is not None
    assert found.name == "fused-optimizer"
    made.cut.add("fused-optimizer")
    assert unfinished_rung(made) is None
    made.cut.clear()
    made.kept = ["tf32"]  # the best is another one
    assert unfinished_rung(made) is None


def test_there_must_be_time_for_what_is_gone_on_with(made: State) -> None:
    know(made, own_precision="exact", mode="train", optimizer_is_fused=False, matches={})
    save(
        made,
        "attempt",
        Unfinished("01-fused-optimizer", ["fused-optimizer"], "baseline", unfinished().ab_run, "fused-optimizer"),
    )
    assert unfinished_rung(leave(made, 0.0)) is None
