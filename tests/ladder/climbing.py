"""Starts `rung` as a user does, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MICRO = f"{Path(__file__).with_name('micro.py')}:make"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rung.cli.main", *arguments]


def rung(*arguments: str, cwd: Path, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=seconds)


def started(*arguments: str, cwd: Path) -> "subprocess.Popen[bytes]":
    """Starts a command whose output nobody needs, in a session of its own."""
    with open(os.devnull, "wb") as nothing:
        return subprocess.Popen(command(*arguments), cwd=cwd, stdout=nothing, stderr=nothing, start_new_session=True)


def attempts(run: Path) -> dict[str, dict[str, Any]]:
    return {a["rung"]: a for a in (json.loads(p.read_text()) for p in sorted((run / "attempts").glob("*.json")))}
