"""A whole command of Rung's own as a child process: started, watched and ended with all that it started."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rung.launch.process import variables
from rung.launch.start import START
from rung.prctl import end_with_parent

PATIENCE = 10.0  # seconds that a command may take to end its workers and to print what there is so far


class Command:
    """One process, in a process group of its own, whose stdout and stderr go to files.

    calls: what runs there, as `package.module:function`; it is called without arguments, with `sys.argv` as typed.
    """

    def __init__(self, calls: str, words: Sequence[str], cwd: Path, stdout: Path, stderr: Path) -> None:
        with stdout.open("wb") as out, stderr.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, START, "rung.launch.command", str(os.getpid()), calls, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=cwd,
                env=variables({}),
                start_new_session=True,  # its own process group; and no signal of a terminal reaches it
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Has the command end as after Ctrl-C. Its workers end with it: each of them watches over its parent."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self, patience: float = PATIENCE) -> None:
        """Ends it and everything in its group; what does not end within `patience` seconds is killed."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=PATIENCE)


def main(arguments: Sequence[str]) -> None:
    """What `start.py` calls in the child: (the parent's id, what to call, the command's words)."""
    parent, calls, *words = arguments
    end_with_parent(int(parent))  # however that ends: nobody would read the answer
    module, _, name = calls.partition(":")
    sys.argv = ["rung", *words]
    getattr(importlib.import_module(module), name)()
