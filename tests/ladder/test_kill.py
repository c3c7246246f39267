"""SIGKILL and Ctrl-C at any moment: the run directory reads, resume works, nothing is left running."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from climbing import MICRO, attempts, command, rung, started

from rung.runs import Run

MOMENTS = int(os.environ.get("RUNG_TEST_KILLS", "2"))  # more find more, at some twelve seconds each


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def all_gone(processes: list[psutil.Process], seconds: float = 15) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def readable(run: Path) -> None:
    """What a report needs of a run directory is there and whole."""
    if (run / "manifest.json").exists():
        data = Run.open_(run).data()
        assert data["manifest"]["target"] == MICRO


@pytest.mark.timeout(600)
def test_killed_at_random_moments_a_climb_can_always_be_gone_on_with(tmp_path: Path) -> None:
    chance = random.Random()
    run = tmp_path / "run"

    def arguments() -> list[str]:
        fresh = [MICRO, "--rungs", "fused-optimizer", "--out", "run"]
        return ["--resume", "run"] if (run / "manifest.json").exists() else fresh

    for moment in range(MOMENTS):
        climb = started("climb", *arguments(), cwd=tmp_path)
        time.sleep(chance.uniform(0.3, 8))
        theirs = descendants(climb.pid)
        if moment % 2 and theirs:
            victim = chance.choice(theirs)
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
            time.sleep(chance.uniform(0, 1))
            theirs = list({*theirs, *descendants(climb.pid)})
        climb.kill()
        climb.wait()
        assert all_gone(theirs), f"moment {moment}: left running: {[p for p in theirs if p.is_running()]}"
        readable(run)
        if run.exists() and not (run / "manifest.json").exists():
            for path in sorted(run.rglob("*"), reverse=True):  # nothing was measured: the user starts again
                path.rmdir() if path.is_dir() else path.unlink()
        if (run / "manifest.json").exists() and Run.open_(run).read("manifest.json")["status"] == "complete":
            break
    if not (run / "manifest.json").exists() or Run.open_(run).read("manifest.json")["status"] != "complete":
        done = rung("climb", *arguments(), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert attempts(run)["fused-optimizer"]["verdict"] in ("kept", "failed")
    assert Run.open_(run).read("manifest.json")["status"] == "complete"


def test_ctrl_c_leaves_a_run_that_says_how_to_go_on(tmp_path: Path) -> None:
    climb = subprocess.Popen(command("climb", MICRO, "--out", "run"), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert climb.stderr is not None
    for line in climb.stderr:
        if line.startswith("measuring the baseline"):
            break
    theirs = descendants(climb.pid)
    climb.send_signal(signal.SIGINT)
    rest = climb.stderr.read()
    assert climb.wait() == 130
    assert "stopped; go on with: rung climb --resume run" in rest
    assert "Traceback" not in rest
    assert all_gone(theirs)
    assert Run.open_(tmp_path / "run").read("manifest.json")["status"] == "interrupted"
    assert (tmp_path / "run/report.html").is_file()
