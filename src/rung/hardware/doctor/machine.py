"""The machine that is audited: its files below a root, its variables, its commands with a time limit."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rung.hardware import places

LONGEST = 1 << 16  # bytes of a file that are read


class Machine:
    """root: where /sys, /proc, /dev and /opt are looked for; python and torch: the interpreter that is asked about torch,
    and the folder of its package (None: not installed); wait: seconds that commands may take, all of them together.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
        torch: Path | str | None = "find",
        wait: float = 2.0,
    ) -> None:
        self.root = root
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.python = python
        self.torch = _torch() if isinstance(torch, str) else torch
        self._until = time.monotonic() + wait
        self._threads = ThreadPoolExecutor(max_workers=4)

    def path(self, name: str) -> Path:
        """Of an absolute name, below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str | Path) -> str | None:
        """The stripped text of a file; None where it is not there or may not be read."""
        try:
            with open(self.path(str(name)) if isinstance(name, str) else name, "rb") as file:
                return file.read(LONGEST).decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, name: str | Path) -> int | None:
        text = self.text(name)
        return int(text) if text and text.lstrip("-").isdecimal() else None

    def size(self, name: str) -> int | None:
        """Bytes of the file system that a folder is on."""
        try:
            facts = os.statvfs(self.path(name))
        except OSError:
            return None
        return facts.f_blocks * facts.f_frsize

    def found(self, folder: str, pattern: str) -> list[Path]:
        """Paths below a folder by name: node2 before node10."""
        try:
            there = list(self.path(folder).glob(pattern))
        except OSError:
            return []
        return sorted(there, key=lambda p: [(len(part), part) for part in p.parts])

    def which(self, name: str) -> str | None:
        """An executable on the PATH of the variables, else where its vendor installs it."""
        return places.which(name, self.environ, self.root)

    def may(self, name: str, mode: int) -> bool:
        """Whether this user may read or write a file (os.R_OK, os.W_OK)."""
        return os.access(self.path(name), mode)

    def ask(self, command: Sequence[str]) -> Future[str | None]:
        """Starts a command; what it writes to stdout. None where it is not there, fails or takes too long."""
        return self._threads.submit(self._run, list(command))

    def _run(self, command: list[str]) -> str | None:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, env=dict(self.environ))  # fmt: skip
        except (OSError, ValueError):
            return None
        try:
            out, _ = process.communicate(timeout=max(0.05, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: one that hangs in the driver of a sick GPU does not even die
            return None
        return None if process.returncode else out.decode("utf-8", "replace")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _torch() -> Path | None:
    """Where torch is installed; looked up, not imported."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None
