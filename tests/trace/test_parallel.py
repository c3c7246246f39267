"""A folder of many files is read in several processes, to the same trace."""

import json
import os
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from rung.errors import InputError
from rung.trace import open as door
from rung.trace import parallel, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(7):
        kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 5, "args": {"device": 0, "stream": 7}}
        events = [kernel | {"name": f"k{k}", "ts": 10 * k + rank} for k in range(5)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    (tmp_path / "notes.txt").write_text("no trace")
    return tmp_path


@pytest.fixture
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "processes_for", lambda files: 3)


def test_the_trace_is_that_of_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = read(folder)
    monkeypatch.setattr(door, "processes_for", lambda files: 3)
    together = read(folder)
    assert_frame_equal(together.events, alone.events, categorical_as_str=True)
    assert together.meta == alone.meta
    assert together.unread == alone.unread


@pytest.mark.usefixtures("_processes")
def test_what_one_file_lacks_is_said_as_ever(folder: Path) -> None:
    (folder / "rank3.json").write_text('{"traceEvents":[{"ph":"X"')
    with pytest.raises(InputError, match=r"rank3\.json is not complete JSON"):
        read(folder)


@pytest.mark.usefixtures("_processes")
def test_a_reader_that_is_killed_is_a_sentence(folder: Path) -> None:
    with pytest.raises(InputError, match=r"rank0\.json could not be read: its reader ended with 9"):
        list(parallel.read_all(f"{__name__}:end", [folder / "rank0.json"], 1, {}))


def end(file: Path) -> None:
    os._exit(9)


@pytest.mark.usefixtures("_processes")
def test_a_module_in_the_current_folder_is_not_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pickle", "polars", "rung"):
        (folder / f"{name}.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(folder)
    assert read(folder).events.height == 35


def test_a_few_small_files_are_read_here(folder: Path) -> None:
    files = sorted(folder.iterdir())
    assert parallel.processes_for(files) == 1
    assert parallel.processes_for(files * 100) == min(parallel.usable_cores(), parallel.MOST)
