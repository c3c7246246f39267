"""A climb in several sittings: what of it is known after it was stopped, or killed."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from made_up import state, tried

from rung.ladder.climb import resume
from rung.ladder.climb.answer import restore_answer, write_result
from rung.ladder.climb.state import Request, State
from rung.ladder.climb.verdict import restore_best
from rung.runs import Run

EARLIER = Path(__file__).parents[2] / "data" / "run_directory"  # of a version in which records were dictionaries


def test_a_climb_that_was_killed_has_taken_the_time_up_to_its_last_attempt(tmp_path: Path) -> None:
    made = state(tmp_path)
    made.started -= 100.0
    tried(made, "a", "slower")
    again = State(Run(made.run.directory), Request("x"), lambda event: None)
    assert 100.0 <= again.spent() < 150.0
    tried(again, "b", "slower")
    time.sleep(0.01)
    assert (again.attempts[-1].spent_seconds or 0.0) < again.spent() < 150.0  # what this sitting adds is counted once


@pytest.mark.parametrize("name", ["manifest.json", "attempts/01-plain.json"])
def test_what_an_earlier_version_wrote_is_written_again_without_loss(tmp_path: Path, name: str) -> None:
    """As it does when a climb is gone on with."""
    run = Run(shutil.copytree(EARLIER, tmp_path / "run"))
    before = run.read(name)
    run.write(name, run.manifest() if name == "manifest.json" else run.attempts()[0])
    assert holds(run.read(name), before)


def holds(whole: Any, part: Any) -> bool:
    """Whether each value of a document is in another, which may have more fields."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    return bool(whole == part)


def test_a_climb_of_an_earlier_version_is_gone_on_with(tmp_path: Path) -> None:
    folder = shutil.copytree(EARLIER, tmp_path / "run")
    before = json.loads((folder / "result.json").read_text())
    made = resume(folder, lambda event: None).state
    made.known, made.measured = made.run.manifest().facts, made.run.baseline()
    restore_answer(made)
    restore_best(made)
    assert made.plain is not None
    assert made.plain.rungs == ["compile"]
    assert made.answer is not None
    assert (made.answer.kept, made.answer.status) == (("compile",), "provisional")
    assert made.answer.speedup.value == before["speedup"]["value"]
    assert made.context().facts.matches == made.run.read("manifest.json")["facts"]["matches"]
    assert made.unfinished["plain"].stack == ["compile"]
    write_result(made)
    after = json.loads((folder / "result.json").read_text())
    same = {"kept", "status", "speedup", "over_plain", "times", "memory", "restarts", "shapes", "plain", "history"}
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
