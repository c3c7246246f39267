"""SIGKILL and Ctrl-C while a model is measured: the run directory reads, and nothing is left running."""

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from climbing import MICRO, command, descendants, left_running

from rung.runs import Run


def begun(folder: Path) -> "subprocess.Popen[str]":
    """A climb that measures its baseline."""
    climb = subprocess.Popen(command("climb", MICRO, "--out", "run"), cwd=folder, stderr=subprocess.PIPE, text=True)
    assert climb.stderr is not None
    assert any(line.startswith("measuring the baseline") for line in climb.stderr)
    return climb


def test_ctrl_c_leaves_a_run_that_says_how_to_go_on(tmp_path: Path) -> None:
    climb = begun(tmp_path)
    theirs = descendants(climb.pid)
    climb.send_signal(signal.SIGINT)
    assert climb.stderr is not None
    rest = climb.stderr.read()
    assert climb.wait() == 130
    assert "stopped; there is no recipe yet." in rest
    assert "rung climb --resume run\n" in rest
    assert "Traceback" not in rest
    assert not left_running(theirs)
    assert Run.open_(tmp_path / "run").read("manifest.json")["status"] == "interrupted"
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.long  # test_going_on.py kills a climb at random moments, too
@pytest.mark.parametrize("seconds", [random.uniform(0, 8)], ids=["at random"])
def test_sigkill_leaves_a_run_that_reads_and_no_process(seconds: float, tmp_path: Path) -> None:
    climb = begun(tmp_path)
    time.sleep(seconds)
    climb.send_signal(signal.SIGSTOP)  # it starts no more, so that all that it has started are seen
    theirs = descendants(climb.pid)
    climb.kill()
    climb.communicate()
    assert not left_running(theirs)
    assert Run.open_(tmp_path / "run").data()["manifest"]["target"] == MICRO
