"""Run directories: whole files, clear errors, one climber at a time."""

import json
import math
import os
import threading
from pathlib import Path

import pytest

from rung.errors import InputError, UsageError
from rung.records.climb import Attempt
from rung.runs import Run, runs_below, write_whole


def test_what_is_written_is_read_and_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.write("manifest.json", {"schema": 1, "value": math.inf, "list": [math.nan, 1]})
    assert json.loads((run.directory / "manifest.json").read_text()) == {"schema": 1, "value": None, "list": [None, 1]}
    assert [r.directory for r in runs_below(tmp_path)] == [run.directory]


def test_attempts_come_back_in_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    for k in (2, 1, 10):
        run.add_attempt(Attempt(number=k, rung="r", verdict="kept", against="baseline"))
    assert [a.number for a in run.attempts()] == [1, 2, 10]


def test_a_partial_file_left_by_a_kill_is_no_attempt(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    (run.directory / "attempts" / ".01-r.json.partial").write_text('{"numb')
    assert run.attempts() == []


def test_a_directory_that_is_no_run_or_a_damaged_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        Run.open_(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        Run.open_(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("manifest.json", '{"schema": 1}', "missing required field `status`"),
        ("manifest.json", '{"schema": 2}', "another version"),
        ("manifest.json", "[]", "no JSON object"),
        ("manifest.json", "[" * 100_000, "could not be read"),
        ("manifest.json", b"\xff\xfe", "could not be read"),
        ("attempts/01-r.json", "{}", "missing required field `number`"),
        (
            "attempts/01-r.json",
            '{"number": "1", "rung": "r", "verdict": "kept", "against": "x"}',
            "Expected `int`, got `str` - at `$.number`",
        ),
        ("baseline.json", "{}", "missing required field `time`"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_missing(name: str, text: str | bytes, says: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    path = run.directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as caught:
        Run.open_(run.directory) if name == "manifest.json" else run.attempts() if "/" in name else run.read(name)
    assert says in str(caught.value)
    assert str(run.directory) in str(caught.value)


def test_two_climbs_cannot_share_a_directory(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.lock()
    with pytest.raises(UsageError, match="another process"):
        Run(run.directory).lock()
    run.unlock()
    Run(run.directory).lock()
    with pytest.raises(UsageError, match="not empty"):
        Run.create(tmp_path, "x", run.directory)


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        Run.create(tmp_path, "x", tmp_path / "file")


def test_whether_somebody_climbs_is_seen_from_outside(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    assert not run.locked
    run.lock()
    assert Run(run.directory).locked
    run.unlock()
    assert not Run(run.directory).locked


def test_a_file_goes_through_a_pipe_and_a_link_which_stay(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert pipe.is_fifo()
    file.write_text("before")
    link.symlink_to(file)
    write_whole(link, "after")
    assert link.is_symlink()
    assert file.read_text() == "after"


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="could not be written: Is a directory"):
        write_whole(tmp_path, "text")
