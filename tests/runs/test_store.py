"""Run directories: whole files, clear errors, one climber at a time."""

import json
import math
from pathlib import Path

import pytest

from rung.errors import InputError, UsageError
from rung.runs import Run, runs_below


def test_what_is_written_is_read_and_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.write("manifest.json", {"schema": 1, "value": math.inf, "list": [math.nan, 1]})
    assert json.loads((run.directory / "manifest.json").read_text()) == {"schema": 1, "value": None, "list": [None, 1]}
    assert [r.directory for r in runs_below(tmp_path)] == [run.directory]


def test_attempts_come_back_in_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    for k in (2, 1, 10):
        run.add_attempt({"number": k, "rung": "r"})
    assert [a["number"] for a in run.attempts()] == [1, 2, 10]


def test_a_partial_file_left_by_a_kill_is_no_attempt(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    (run.directory / "attempts" / ".01-r.json.partial").write_text('{"numb')
    assert run.attempts() == []


def test_a_directory_that_is_no_run_or_a_damaged_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run directory"):
        Run.open_(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        Run.open_(tmp_path)


def test_two_climbs_cannot_share_a_directory(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.lock()
    with pytest.raises(UsageError, match="another process"):
        Run(run.directory).lock()
    run.unlock()
    Run(run.directory).lock()
    with pytest.raises(UsageError, match="not empty"):
        Run.create(tmp_path, "x", run.directory)
