"""Commands with a limit of time each, and one of all together; what they print is kept in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
sys.path.insert(0, str(SOURCE))
ENOUGH = 200_000  # bytes of a text
TOOLS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute", "/opt/nvidia/nsight-systems")


@dataclass(frozen=True)
class Done:
    code: int | None  # None: it did not end in time
    out: str
    err: str
    seconds: float

    @property
    def why(self) -> str:
        """In a few words, for a table."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        last = next((line for line in lines if line.startswith("rung: ")), lines[-1] if lines else "nothing was said")
        said = last.partition(". The last lines of ")[0][:160]
        return f"{'stopped: too long' if self.code is None else f'exit {self.code}'}: {said}".replace("|", "/")


class Bench:
    """Where outputs go, and how much time is left for all of it."""

    def __init__(self, folder: Path, seconds: float, sizes: Sequence[str]) -> None:
        self.sizes = sizes
        self.folder, self.until = folder, time.monotonic() + seconds
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
                    "PATH": os.pathsep.join([os.environ.get("PATH", ""), *tool_folders()]), "COLUMNS": "110"}  # fmt: skip

    def left(self) -> float:
        return self.until - time.monotonic()

    def call(self, name: str, argv: Sequence[str], limit: float) -> Done:
        """Runs it to its end or for `limit` seconds, all that it started with it; keeps what it printed."""
        limit, begun = max(1.0, min(limit, self.left())), time.monotonic()
        process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", env=self.env, cwd=self.folder, start_new_session=True)  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # rung ends what it started itself
            try:
                out, err = process.communicate(timeout=6)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            code = None
        seconds = time.monotonic() - begun
        (self.folder / f"{name}.txt").write_text(f"$ {' '.join(argv)[:2000]}\nexit {code}, {seconds:.2f} s\n\n{out[:ENOUGH]}\n{err[-ENOUGH:]}")  # fmt: skip
        return Done(code, out, err, seconds)

    def rung(self, name: str, words: Sequence[str], limit: float) -> Done:
        return self.call(name, [sys.executable, "-m", "rung.cli.main", *words], limit)

    def started(self, script: str, words: Sequence[str]) -> subprocess.Popen[str]:
        """A script of ours beside this one, once it says that it is ready."""
        process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True,
                                   env=self.env, cwd=self.folder, start_new_session=True)  # fmt: skip
        limit = min(60.0, max(1.0, self.left()))
        late = threading.Timer(limit, process.kill)
        late.start()
        ready = process.stdout.readline() if process.stdout else ""
        late.cancel()
        if ready.strip() != "ready":
            process.kill()
            raise RuntimeError(f"the load did not start within {limit:.0f} s (what it said is on stderr)")
        return process


def tool_folders() -> list[str]:
    """Where NVIDIA puts its profilers, newest first."""
    found = [Path(TOOLS[0])]
    for root in TOOLS[1:]:
        for version in sorted(Path(root).glob("*"), reverse=True):
            found += [version, version / "bin"]
    return [str(path) for path in found if path.is_dir()]


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
