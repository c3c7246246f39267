"""One JSON document a line in each direction, between a coordinator and a process that serves it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from rung.errors import WorkloadError
from rung.launch.descriptors import readable

MOST = 1 << 28  # bytes of an answer; what is longer is none
# What is called in a worker, in the words of who waits for it.
WORDS = {"open": "loading", "first": "the first run", "warm": "the warm-up", "block": "the timing",
         "alone": "the timing without exchange", "work": "the counting of its work"}  # fmt: skip


def said(method: str) -> str:
    return WORDS.get(method, method)


def last_line(text: str) -> str:
    """What to add to a sentence of what a process printed; empty where it printed nothing."""
    lines = text.strip().splitlines()
    return f" Its last line: {lines[-1][:200]}" if lines else ""


def last_line_of(log: Path) -> str:
    """The same of a file, which may not be there."""
    return last_line(log.read_text(errors="replace")) if log.exists() else ""


def signal_name(number: int) -> str:
    """As in `SIGKILL`. Real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class WorkerFailed(WorkloadError):
    """A call that did not return a value. `kind`: raised, refused, out of memory, killed, hung; what was refused
    keeps the exit code of the error that refused it."""

    def __init__(self, message: str, kind: str, traceback: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback
        self.exit_code = exit_code or self.exit_code

    @property
    def sentence(self) -> str:
        """What it was and what it says, as records have it."""
        return f"{self.kind}: {self}"

    @property
    def lacked_memory(self) -> bool:
        """Whether the device or the host may have been out of memory, beside others or alone: the system's out-of-memory killer ends a
        process by SIGKILL."""
        return self.kind == "out of memory" or (self.kind == "killed" and "SIGKILL" in str(self))


class Channel:
    """The coordinator's end: file descriptors of two pipes, or of one socket."""

    def __init__(self, replies: int, requests: int) -> None:
        self._replies, self._requests = replies, requests
        self._pending = b""
        self.ended = False  # the other end closed it

    def fileno(self) -> int:
        """What `select` waits on."""
        return self._replies

    @property
    def closed(self) -> bool:
        return self._replies < 0

    def send(self, document: Any) -> None:
        """Raises OSError where nobody reads it any longer."""
        data = json.dumps(document).encode() + b"\n"
        while data:
            data = data[os.write(self._requests, data) :]

    def has_line(self) -> bool:
        """Whether there is an answer, or more than any would have, without a look at what came meanwhile."""
        return b"\n" in self._pending or len(self._pending) > MOST

    def read(self) -> bool:
        """Takes in what has come, and waits for it where there is nothing; False where the other end is closed."""
        try:
            chunk = os.read(self._replies, 1 << 20)
        except ConnectionError:  # of a socket whose other end was killed
            chunk = b""
        self._pending += chunk
        self.ended = not chunk
        return bool(chunk)

    def answered(self) -> bool:
        """Whether there is an answer, or nobody left to give one."""
        while not self.has_line():
            if self.ended:
                return True
            if not readable([self._replies], 0.0):
                return False
            self.read()
        return True

    def line(self, until: float) -> bytes | None:
        """The next answer; None where none is there and it is `until` by `time.monotonic`. Raises EOFError where the other end is closed."""
        while not self.has_line():
            if not readable([self._replies], until - time.monotonic()):
                return None
            if not self.read():
                raise EOFError
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def close(self) -> None:
        for fd in {self._requests, self._replies}:
            if fd >= 0:
                os.close(fd)
        self._requests = self._replies = -1


class Reply:
    """One answer of a process that serves. spent: seconds of the call within that process, and of its CPU time.

    Raises ValueError where the line is no answer.
    """

    def __init__(self, line: bytes) -> None:
        try:
            reply = json.loads(line)
            # Another revision's worker may not tell them.
            self.spent = float(reply.get("seconds") or 0.0), float(reply.get("cpu_seconds") or 0.0)
            self.value = reply.get("value")
            self.failure = self._failure(reply["error"]) if "error" in reply else None
            if not self.failure and "value" not in reply:
                raise KeyError("value")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    @staticmethod
    def _failure(e: Any) -> WorkerFailed:
        # A worker may be of another version than we are, where it is Rung that is compared with a revision of its own.
        raised = f"{e['type']}: {e['message']}{e.get('where', '')}"
        message = e["message"] if e["kind"] == "refused" else raised
        return WorkerFailed(message, e["kind"], e["traceback"], e["exit_code"])


def unreadable(method: str, log: object) -> WorkerFailed:
    """For an answer that is none."""
    return WorkerFailed(
        f"{said(method)} gave no readable answer: the workload wrote to a file descriptor of the worker, "
        f"so have it write only to files that it opened. The worker's log: {log}",
        "killed",
    )
