"""Starts `rung` as a user does, in a process of its own that sees no GPU; what is far apart is told so by fewer rounds, and by restarts that
are forks, too, where fresh processes would load torch for seconds each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

MICRO = f"{Path(__file__).with_name('micro.py')}:make"
WITHOUT_GPU = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
}  # what is told of a climb is told of one on a CPU
SHORT = """
from rung.cli.main import command
from rung.timing import tasks, worker_group
worker_group.ROUNDS_SECONDS["cpu"] = 0
tasks.Task.fresh = property(lambda task: False, lambda task, fresh: None)
command()
"""


def command(*arguments: str) -> list[str]:
    started = ["-c", SHORT] if arguments[0] in ("climb", "compare") else ["-m", "rung.cli.main"]
    return [sys.executable, *started, *arguments]


def rung(*arguments: str, cwd: Path, seconds: float = 580) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    env = {**os.environ, **WITHOUT_GPU}
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=seconds, env=env)


def attempts(run: Path) -> dict[str, dict[str, Any]]:
    return {a["rung"]: a for a in (json.loads(p.read_text()) for p in sorted((run / "attempts").glob("*.json")))}


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def left_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended a minute later."""
    _, alive = psutil.wait_procs(processes, timeout=60)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
