"""Commands that Rung prints work as they stand, however it was called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rung.program import program

BESIDE = Path(sys.executable).with_name("rung")  # of this environment
ELSEWHERE = "/usr/bin:/bin"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "an environment" / "rung"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_rung_on_the_path_is_rung(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{script.parent}:{ELSEWHERE}")
    monkeypatch.setattr(sys, "argv", [str(script), "climb"])
    assert program() == "rung"


def test_a_script_that_is_not_on_the_path_is_called_by_its_own(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", ELSEWHERE)
    monkeypatch.setattr(sys, "argv", [str(script), "climb"])
    assert program() == f"'{script}'"


def test_another_rung_on_the_path_is_not_taken(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{script.parent}:{ELSEWHERE}")
    monkeypatch.setattr(sys, "argv", [".venv/bin/rung", "climb"])
    assert program() == ".venv/bin/rung"


def test_a_program_that_imports_rung_says_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", ELSEWHERE)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert program() == "rung"


@pytest.mark.parametrize("path", [f"{BESIDE.parent}:{ELSEWHERE}", ELSEWHERE])
def test_a_module_that_was_run_says_so_where_there_is_no_shorter_way(path: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    words = [sys.executable, "-m", "rung", "climb", "tiny-transformer", "--device", "cpu", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 2
    itself = "rung" if BESIDE.exists() and path != ELSEWHERE else f"{sys.executable} -m rung"
    assert f"or go on with `{itself} climb --resume run`" in done.stderr
