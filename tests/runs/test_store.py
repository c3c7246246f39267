"""Run directories: whole files, clear errors, one climber at a time."""

import errno
import fcntl
import json
import math
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from rung.errors import InputError, UsageError
from rung.records.climb import Attempt
from rung.runs import Run, runs_below, store, write_whole


def test_what_is_written_is_read_and_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.write("manifest.json", {"schema": 1, "value": math.inf, "list": [math.nan, 1]})
    assert json.loads((run.directory / "manifest.json").read_text()) == {"schema": 1, "value": None, "list": [None, 1]}
    assert [r.directory for r in runs_below(tmp_path)] == [run.directory]


def test_attempts_come_back_in_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    for k in (2, 101, 1, 99, 10, 100):
        run.add_attempt(Attempt(number=k, rung="r", verdict="kept", against="baseline"))
    assert [a.number for a in run.attempts()] == [1, 2, 10, 99, 100, 101]


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


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_climb_goes_on_where_the_file_system_has_no_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    run = Run.create(tmp_path, "x")
    run.lock()
    run.unlock()


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    (run.directory / ".lock").mkdir()  # which nobody can open, be it root
    with pytest.raises(InputError, match=r"\.lock: Is a directory; .* check the free space and the permissions"):
        run.lock()


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


def _write_often(path: Path, letter: str, failed: "multiprocessing.Queue[str]") -> None:
    for _ in range(40):
        try:
            write_whole(path, letter * 400_000)
        except InputError as error:
            failed.put(str(error))
    failed.put("")


def test_two_processes_that_write_one_file_leave_it_whole(tmp_path: Path) -> None:
    path, failed = tmp_path / "report.html", multiprocessing.get_context("spawn").Queue()
    write_whole(path, "x" * 400_000)
    writers = [
        multiprocessing.get_context("spawn").Process(target=_write_often, args=(path, letter, failed))
        for letter in "ab"
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert {len(text := path.read_text()), len(set(text))} == {400_000, 1}
    assert [failed.get(timeout=10) for _ in writers] == ["", ""]
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_file_has_the_permissions_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "whole", "text")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    write_whole(tmp_path / ("é" * 127), "text")
    assert (tmp_path / ("é" * 127)).read_text() == "text"


def test_what_a_killed_process_was_writing_is_removed_once_it_is_old(tmp_path: Path) -> None:
    names = {name: tmp_path / name for name in (".f.partial", ".f.0123456789abcdef.partial", ".g.partial", ".f.mine")}
    for path in names.values():
        path.write_text("")
    write_whole(tmp_path / "f", "text")
    assert set(os.listdir(tmp_path)) == {"f", *names}
    for path in names.values():
        os.utime(path, (old := time.time() - 2 * store.ABANDONED, old))
    write_whole(tmp_path / "f", "text")
    assert set(os.listdir(tmp_path)) == {"f", ".g.partial", ".f.mine"}


def test_a_text_that_cannot_be_written_leaves_no_part_of_it(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "f", "x" * 100_000 + "\ud800")
    assert os.listdir(tmp_path) == []
