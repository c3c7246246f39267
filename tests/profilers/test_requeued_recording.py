"""`rung profile --out` in a job that SLURM started anew: what was recorded is told, what was cut off is recorded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rung.cli.main import main

WORDS = ["profile", "--with", "rocprofv3", "--out", "x", "--json", "--", "true"]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tools_on_path: Callable[..., object]) -> pytest.MonkeyPatch:
    for name in ("RUNG_IN_JOB", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("RUNG_HISTORY", "off")
    monkeypatch.setattr("sys.argv", ["rung", *WORDS])
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3", "rocprofv3-avail", rocm="7.0")
    return monkeypatch


def test_what_was_complete_is_told_and_what_was_cut_off_is_recorded_again(
    job: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(WORDS) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(WORDS) == 2  # not started anew: the folder is somebody's
    assert "is there already" in capsys.readouterr().err
    job.setenv("SLURM_RESTART_COUNT", "1")
    assert main(WORDS) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == first
    assert "x/task3 had been recorded" in told.err

    Path("x/task3/profile.json").unlink()
    Path("x/task3/recording/half").write_bytes(b"cut off")
    assert main(WORDS) == 0
    assert "x/task3.cut-1, and is recorded again" in capsys.readouterr().err
    assert Path("x/task3/profile.json").is_file()
    assert not Path("x/task3/recording/half").exists()
    assert Path("x/task3.cut-1/recording/half").read_bytes() == b"cut off"


def test_a_job_that_rung_submitted_finds_its_own_recording_again(
    job: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.setenv("RUNG_IN_JOB", "--slurm 1")
    job.setenv("SLURM_RESTART_COUNT", "1")  # of the job from which it was submitted
    assert main(WORDS) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(WORDS) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == first
    assert "x had been recorded" in told.err


def test_what_the_program_wrote_beside_its_recording_is_left_alone(
    job: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(WORDS) == 0
    Path("x/task3/profile.json").unlink()
    Path("x/task3/checkpoint.pt").write_bytes(b"weights")
    job.setenv("SLURM_RESTART_COUNT", "1")
    assert main(WORDS) == 2
    assert "x/task3 is there already" in capsys.readouterr().err
    assert Path("x/task3/checkpoint.pt").read_bytes() == b"weights"


@pytest.mark.parametrize("other", ["job", "command"])
def test_the_folder_of_another_is_left_alone(
    other: str, job: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(WORDS) == 0
    job.setenv("SLURM_RESTART_COUNT", "1")
    if other == "job":
        job.setenv("SLURM_JOB_ID", "13")
    else:
        job.setattr("sys.argv", ["rung", *WORDS, "more"])
    assert main(WORDS) == 2
    assert "is there already" in capsys.readouterr().err
