"""Runs a plan: one program after the other, each with a log and a deadline, and nothing of it left running."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from rung.errors import WorkloadError
from rung.launch.channel import signal_name
from rung.prctl import adopt_orphans
from rung.profilers.plan import IN_WORKLOAD, WORKLOAD, Plan, Run

LINES = 12  # of a log, in the error that it explains
NOT_FOUND = 127
ROOM = 1 << 20  # bytes: with less free, a disk is full
EVERY = 30.0  # seconds between two words that it still runs


class ProfilerFailed(WorkloadError):
    """The profiler, or the program under it, did not end well; the last lines of the log are part of the message.
    code: its exit code, where it ended; log: what it printed."""

    def __init__(self, message: str, code: int | None = None, log: Path | None = None) -> None:
        super().__init__(message)
        self.code, self.log = code, log


def run(
    plan: Plan,
    deadline: float,
    said: Callable[[str], None] = lambda _: None,
    beside: AbstractContextManager[object] | None = None,
) -> tuple[list[Path], list[str]]:
    """Writes the plan's files and runs its programs in their order; each has `deadline` seconds.

    beside: entered until the first recorded run has ended, for what is to be sampled in that time.

    Returns the logs, one a run, and notes: what the logs warn of, and runs that failed and could be spared. Raises
    ProfilerFailed when a run fails, is killed or hangs; all that it started is ended first.
    """
    for path, text in plan.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    logs, notes = [], []
    with contextlib.ExitStack() as watched:
        watched.enter_context(beside or contextlib.nullcontext())
        for number, one in enumerate(plan.runs, start=1):
            log = plan.folder.parent / f"{number}-{one.what.split(',')[0].replace(' ', '-')}.log"
            logs.append(log)
            said(f"{plan.profiler}: {one.what} ...")
            try:
                _one(plan, one, log, deadline, said)
            except ProfilerFailed as error:
                if not one.optional:
                    raise
                notes.append(str(error).splitlines()[0])
            if one.recorded:
                watched.close()
            notes += warnings(log)
    return logs, list(dict.fromkeys(notes))


def _one(plan: Plan, one: Run, log: Path, deadline: float, said: Callable[[str], None]) -> None:
    one.output.mkdir(parents=True, exist_ok=True)
    argv = [_workload(plan, one) if word == WORKLOAD else word for word in one.argv]
    label = f"{plan.profiler} ({one.what})"
    adopt_orphans()  # what it leaves behind becomes our child: so it is found, whatever session it has begun
    before = _below_us()
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       env={**os.environ, **one.env}, start_new_session=True)  # fmt: skip
        except OSError as error:
            raise ProfilerFailed(f"{label} could not be started: {argv[0]}: {error.strerror}.") from None
    with _ended(process, before):
        code = _waited(process, deadline, lambda seconds: said(f"{label}: {seconds:.0f} s of at most {deadline:g} s"))
    # Only now: what a tool says when it is asked to end belongs to its last lines.
    if code is None:
        what = f"{label} did not end within {deadline:g} s and was stopped"
        raise ProfilerFailed(_with_log(what, log, one.says))
    if code:
        raise ProfilerFailed(_with_log(f"{label} {_how(code)}", log, one.says), code, log)


def _waited(process: subprocess.Popen[bytes], deadline: float, said: Callable[[float], None]) -> int | None:
    """The exit code, or None after `deadline` seconds. Until then tells now and then how long it has been."""
    begun = time.monotonic()
    while True:
        left = begun + deadline - time.monotonic()
        try:
            return process.wait(timeout=max(0.0, min(EVERY, left)))
        except subprocess.TimeoutExpired:
            if left <= EVERY:
                return None
            said(time.monotonic() - begun)


def _workload(plan: Plan, one: Run) -> str:
    """The folder in which an earlier run left a rocprof-compute workload."""
    found = next(iter(sorted(one.output.rglob(IN_WORKLOAD))), None)
    if found is None:
        raise ProfilerFailed(f"{plan.profiler}: {one.what} found no {IN_WORKLOAD} below {one.output}.")
    return str(found.parent)


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    if code == NOT_FOUND:
        return "ended with exit code 127: it, or the program, was not found"
    return f"ended with exit code {code} (its own, or the program's)"


def _with_log(what: str, log: Path, says: Path | None = None) -> str:
    # What a tool says stands between the rows of its table there.
    told = [line for line in tail(says) if not line.startswith('"')][-3:] if says else []
    lines = tail(log, LINES - len(told))
    what += f". {full}" if (full := disk_full(log.parent)) else ""
    if not lines and not told:
        return f"{what}. It printed nothing ({log})."
    where = " and ".join(str(path) for path, some in ((log, lines), (says, told)) if some)
    return f"{what}. The last lines of {where}:\n" + "\n".join(f"  {line}" for line in lines + told)


def disk_full(folder: Path) -> str:
    """A few words where there is no room to write: profilers that find none say many things, or nothing."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < ROOM:
            return f"The disk of {folder} is full: free some space, or choose another --out"
    return ""


def tail(log: Path, lines: int = LINES) -> list[str]:
    """The last lines of a log, of its last 64 kB, each cut at 300 characters."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 16)))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line[:300] for line in text.splitlines() if line.strip()][-lines:]


_WARNINGS = ("Unable to find all counters", "Wrong option", "is deprecated", "Could not construct profile cfg")


def warnings(log: Path) -> list[str]:
    """Lines in which a profiler says that it left something out and went on."""
    with contextlib.suppress(OSError), log.open(errors="replace") as lines:
        return [line.strip()[:300] for line in lines if any(text in line for text in _WARNINGS)][:5]
    return []


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes], before: set[psutil.Process]) -> Iterator[None]:
    """Afterwards nothing that the process started is running, even in sessions of its own. before: what ran below us until then."""
    try:
        yield
    finally:
        for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
            until = time.monotonic() + seconds
            asked: set[psutil.Process] = set()
            while (left := _left(process, before)) and time.monotonic() < until:
                for one in left - asked:  # one that ends may leave others
                    with contextlib.suppress(psutil.Error):
                        one.send_signal(number)
                asked |= left
                time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)


def _left(process: subprocess.Popen[bytes], before: set[psutil.Process]) -> set[psutil.Process]:
    """What the process has started and runs still, itself among it. Of those that have ended we are told here."""
    process.poll()
    here, found = os.getsid(0), set()
    for one in _below_us() - before:
        with contextlib.suppress(psutil.Error, OSError):
            if (
                os.getsid(one.pid) == here
            ):  # another thread's, as a command that reads sensors: the process began a session
                continue
            if one.status() != psutil.STATUS_ZOMBIE:
                found.add(one)
            elif one.pid != process.pid:
                os.waitpid(one.pid, os.WNOHANG)
    return found


def _below_us() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
