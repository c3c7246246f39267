"""Starts `rung` as a user does, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

MICRO = f"{Path(__file__).with_name('micro.py')}:make"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rung.cli.main", *arguments]


def rung(*arguments: str, cwd: Path, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=seconds)


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
