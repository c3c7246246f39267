"""Commands that run for an agent: each in a process of its own, so that a crash or a cancel takes nothing else down. Its words are made of a
tool's arguments."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rung.errors import UsageError
from rung.launch.command import Command
from rung.records.job import Job as JobRecord
from rung.records.job import Refused
from rung.records.record import plain
from rung.text import visible

KEPT = 30  # jobs that have ended, whose answers can still be asked for
LINES = 8  # of progress
LARGEST = 1 << 27  # bytes of a document
TAIL = 1 << 15  # bytes of what a command said
LEAVING = 1.0  # seconds that commands have when the connection ends: a client kills the server after two
STOPPED = 130  # the exit code of a command that was stopped


class Job:
    """One command with --json. alone: it times, and nothing else may run beside it that does."""

    def __init__(self, name: str, calls: str, words: Sequence[str], cwd: Path, folder: Path, alone: bool) -> None:
        self.name, self.alone = name, alone
        self.line = shlex.join(["rung", *words])
        self.out, self.errors = folder / f"{name}.json", folder / f"{name}.log"
        self.cancelled = False
        self._began, self._ended = time.monotonic(), 0.0
        self._command = Command(calls, [*words, "--json"], cwd, self.out, self.errors)

    @property
    def running(self) -> bool:
        running = self._command.exit_code is None
        if not running and not self._ended:
            self._ended = time.monotonic()
        return running

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    def status(self) -> Literal["running", "done", "failed", "cancelled"]:
        if self.running:
            return "running"
        if self.cancelled:
            return "cancelled"
        return "done" if self._command.exit_code in (0, 1) else "failed"

    def said(self, lines: int = LINES) -> list[str]:
        """The last lines of progress."""
        with self.errors.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            text = visible(file.read().decode(errors="replace"))
        return [line[:300] for line in text.splitlines() if line.strip()][-lines:]

    def record(self) -> dict[str, Any]:
        """What an agent is told of it."""
        running = self.running
        ask = f'job_result(job="{self.name}")'
        return plain(
            JobRecord(
                job=self.name,
                command=self.line,
                status=self.status(),
                seconds=round(self.seconds, 1),
                exit_code=self._command.exit_code,
                progress=self.said(),
                next=f'{ask} waits for the answer; job_cancel(job="{self.name}") ends it' if running else ask,
            )
        )

    def document(self) -> Any:
        """What the command printed; where it printed nothing, an error that says what it said last."""
        if self.out.stat().st_size > LARGEST:
            return _error(f"the answer has more than {LARGEST >> 20} MiB; ask for less", 2)
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(self.out.read_text(encoding="utf-8", errors="replace"))
        if self.cancelled:
            return _error("cancelled before there was an answer", STOPPED)
        said = self.said(1)
        code = self._command.exit_code
        return _error(f"the command ended with exit code {code}{': ' + said[0] if said else ''}", code or 70)

    def end(self, patience: float | None = None) -> None:
        """Ends the command and its workers."""
        if self.running:
            self.cancelled = True
        self._command.end() if patience is None else self._command.end(patience)

    def ask_to_end(self) -> None:
        self.cancelled = self.cancelled or self.running
        self._command.ask_to_end()


def _error(text: str, code: int) -> dict[str, Any]:
    return plain(Refused(error=text, exit_code=code))


class Jobs:
    """All commands of one server. calls: what runs a command, as `package.module:function`; folder: for what they print."""

    def __init__(self, calls: str, cwd: Path, folder: Path) -> None:
        self._calls, self._cwd, self._folder = calls, cwd, folder
        self._jobs: dict[str, Job] = {}
        self._count = 0

    def start(self, words: Sequence[str], alone: bool) -> Job:
        """Raises UsageError where a command that times is running, and this one would, too."""
        busy = next((job for job in self._jobs.values() if alone and job.alone and job.running), None)
        if busy:
            raise UsageError(
                f"job {busy.name} ({busy.line}) is running, and two that are timed at once disturb each other: wait for it with "
                f'job_result(job="{busy.name}"), or end it with job_cancel(job="{busy.name}").'
            )
        self._forget()
        self._count += 1
        job = Job(str(self._count), self._calls, words, self._cwd, self._folder, alone)
        self._jobs[job.name] = job
        return job

    def ending(self) -> bool:
        """Whether a command that times was told to end and has not yet."""
        return any(job.alone and job.cancelled and job.running for job in self._jobs.values())

    def get(self, name: str) -> Job:
        """Raises UsageError where there is no such job."""
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise UsageError(f"there is no job {name!r}; there are: {known}. The answers of the last {KEPT} are kept.")
        return self._jobs[name]

    def _forget(self) -> None:
        over = [job for job in self._jobs.values() if not job.running][:-KEPT]
        for job in over:
            del self._jobs[job.name]
            job.out.unlink(missing_ok=True)
            job.errors.unlink(missing_ok=True)

    def end(self) -> None:
        """Ends all of them, side by side."""
        for job in self._jobs.values():
            job.ask_to_end()
        until = time.monotonic() + LEAVING
        for job in self._jobs.values():
            job.end(max(0.0, until - time.monotonic()))


Value = bool | int | float | str | Sequence[str] | None
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


def options(**given: Value) -> list[str]:
    """`--name=value` of each that is given: in one word, so that no value is read as another option. True is the option alone; a list is
    joined by commas."""
    found = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not None and value is not False and value != []:
            found.append(f"{flag}={value if isinstance(value, str | int | float) else ','.join(value)}")
    return found


def of_the_target(given: Mapping[str, bool | int | float | str], own: Collection[str]) -> list[str]:
    """Options of a target's own. own: the flags of the command itself, which would take them for its own. Raises UsageError for one of
    these: each has an argument of the tool, where it is allowed."""
    for name in given:
        if not _NAME.fullmatch(name) or f"--{name.replace('_', '-')}" in own or f"--{name}" in own:
            raise UsageError(
                f"{name!r} is not an option of a target: `options` are the parameters of its function, as in {{'batch': 8}}."
            )
    return [f"--{name.replace('_', '-')}={_text(value)}" for name, value in given.items()]


def _text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
