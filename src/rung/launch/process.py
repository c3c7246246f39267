"""The coordinator's side of a worker process: start it, call it with a deadline, end it with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil

from rung.errors import RungError, UsageError, WorkloadError
from rung.runs import keep, temporary_folder

START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py")
MOST = 1 << 28  # bytes of an answer; what is longer is none
STARTING = 2.0  # seconds within which a guard has forked the worker that it guards
# What is called in a worker, in the words of who waits for it.
WORDS = {"open": "loading", "first": "the first run", "warm": "the warm-up", "block": "the timing"}


def _said(method: str) -> str:
    return WORDS.get(method, method)


def in_process_of_ours() -> bool:
    """Whether this process was started by `start.py`, as workers are."""
    return getattr(sys.modules.get("__main__"), "__file__", None) == START


def not_in_a_worker(name: str) -> None:
    """A file that measures whenever it is imported would start workers that import it, and so on. Raises UsageError."""
    if in_process_of_ours():
        raise UsageError(f'{name} is called as this file is imported; put the call under `if __name__ == "__main__":`.')


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker. An empty entry of PYTHONPATH, as `$PYTHONPATH:/x` often has one, would be the current folder."""
    env = {**os.environ, **more}
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, env["PYTHONPATH"].split(os.pathsep)))
    return env


class WorkerFailed(WorkloadError):
    """A call that did not return a value. `kind`: raised, refused, out of memory, killed, hung; what was refused
    keeps the exit code of the error that refused it."""

    def __init__(self, message: str, kind: str, traceback: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback
        self.exit_code = exit_code or self.exit_code

    @property
    def lacked_memory(self) -> bool:
        """Whether the device or the host may have been out of memory, beside others or alone: the system's out-of-memory killer ends a
        process by SIGKILL."""
        return self.kind == "out of memory" or (self.kind == "killed" and "SIGKILL" in str(self))


@contextlib.contextmanager
def log_folder(prefix: str) -> Iterator[Path]:
    """A folder for the logs of workers, which is removed unless something failed, and they say something or the error names them."""
    with temporary_folder(prefix) as folder:
        try:
            yield folder
        except RungError as error:
            named = str(folder) in str(error)
            if named or any(file.stat().st_size for file in folder.rglob("*.log")):
                keep(folder)
                error.logs = "" if named else str(folder)
            raise


class Worker:
    """One process that serves one object, named `package.module:Class`. Use it as a context manager."""

    running: ClassVar[set[Worker]] = set()  # those of this process that were not ended yet

    spent = 0.0, 0.0  # seconds of the call that was answered last, within the worker, and of its CPU time

    def __init__(self, serves: str, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        theirs = (request_read, reply_write, lifeline_read)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, START, "rung.launch.worker", *map(str, theirs), serves],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=theirs,
                start_new_session=True,  # its own process group, so that one signal ends it with its compilers
                env=variables(env or {}),
                cwd=cwd,
            )
        for fd in theirs:
            os.close(fd)
        self._pending = b""
        Worker.running.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, method: str, **arguments: Any) -> None:
        """Starts a call without waiting for it; `receive` waits."""
        self._refuse_if_ended(method)
        data = json.dumps({"method": method, "arguments": arguments}).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            raise self._ended(method) from None

    def receive(self, method: str, deadline: float) -> Any:
        """The value of the call begun last; after `deadline` seconds the worker is killed and counts as hung."""
        self._refuse_if_ended(method)
        until = time.monotonic() + deadline
        while not self._has_line():
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                self.kill()
                raise WorkerFailed(
                    f"{_said(method)} did not end within its deadline of {deadline:.0f} s; the worker was stopped. "
                    f"Its output: {self.log}",
                    "hung",
                )
            if not self._read():
                raise self._ended(method)
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            reply = json.loads(line)
            # Another revision's worker may not tell them.
            self.spent = float(reply.get("seconds") or 0.0), float(reply.get("cpu_seconds") or 0.0)
            if "error" not in reply:
                return reply["value"]
            e = reply["error"]
            # A worker may be of another version than we are, where it is Rung that is compared with a revision of its own.
            raised = f"{e['type']}: {e['message']}{e.get('where', '')}"
            message = e["message"] if e["kind"] == "refused" else raised
            failed = WorkerFailed(message, e["kind"], e["traceback"], e["exit_code"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.kill()
            failed = WorkerFailed(
                f"{_said(method)} gave no answer that can be read: something wrote to a file descriptor of the worker's "
                f"own, so let the workload write only to files that it opened. The worker's log: {self.log}",
                "killed",
            )
        raise failed

    def _refuse_if_ended(self, method: str) -> None:
        if self._replies < 0:
            raise WorkerFailed(f"the worker was ended before {_said(method)}. Its output: {self.log}", "killed")

    def _has_line(self) -> bool:
        """Whether there is an answer, or more than any would have."""
        return b"\n" in self._pending or len(self._pending) > MOST

    def _read(self) -> bool:
        """Takes in what has come; False where the worker's end of the pipe is closed."""
        chunk = os.read(self._replies, 1 << 20)
        self._pending += chunk
        return bool(chunk)

    def answered(self) -> bool:
        """Whether `receive` would return, or raise, without waiting."""
        while not self._has_line():
            if not select.select([self._replies], [], [], 0)[0]:
                return False
            if not self._read():
                return True
        return True

    def call(self, method: str, deadline: float, **arguments: Any) -> Any:
        """Calls a method of the served object; WorkerFailed when it raises, hangs or its process dies."""
        self.send(method, **arguments)
        return self.receive(method, deadline)

    def _ended(self, method: str) -> WorkerFailed:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail = self.log.read_text(errors="replace").strip().splitlines()[-1:] if self.log.exists() else []
        said = f" Its last line: {tail[0][:200]}" if tail else ""
        return WorkerFailed(f"the worker {how} during {_said(method)}.{said} Its output: {self.log}", "killed")

    def kill(self) -> None:
        """Ends the worker and everything it started."""
        Worker.running.discard(self)
        if self._replies < 0:  # it was ended before, and another process may have its number by now
            return
        self._process.terminate()  # its guard ends all that is below it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # where the guard could not
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        for fd in (self._requests, self._replies, self._lifeline):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._requests = self._replies = self._lifeline = -1

    def alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        """What `select` waits on."""
        return self._replies

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def quiet(timed: Collection[Worker]) -> Iterator[None]:
    """Stops all workers of this process but these while it lasts: what compiles in the background would take cores and caches
    from what is timed. Their guards go on: they end stopped ones, too, when this process is gone."""
    groups = {worker.pid for worker in Worker.running if worker not in timed and worker.alive()}
    stopped: set[int] = set()
    while new := _members(groups) - stopped:  # what one of them started meanwhile is seen the next time
        _signal(new, signal.SIGSTOP)
        stopped |= new
    try:
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


def _members(groups: Collection[int]) -> set[int]:
    """The processes of these groups, without the guards that lead them. Waits for what a worker that was just started is to be."""
    until = time.monotonic() + STARTING
    while groups:
        found = {pid: group for pid in psutil.pids() if pid not in groups and (group := _group(pid)) in groups}
        if set(found.values()) == set(groups) or time.monotonic() > until:
            return set(found)
        time.sleep(0.01)
    return set()


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def _signal(processes: Collection[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def first_answer(workers: Collection[Worker], seconds: float) -> list[Worker]:
    """Those that have answered, as soon as any has, or none after so many seconds."""
    ready = [worker for worker in workers if worker.answered()]
    if ready or not workers:
        return ready
    select.select(list(workers), [], [], max(0.0, seconds))
    return [worker for worker in workers if worker.answered()]


def kill_all(workers: Iterable[Worker]) -> None:
    """Ends many at once: each takes a moment, which is not waited for one after the other."""
    given = list(workers)
    for worker in [running for running in Worker.running if any(running is one for one in given)]:
        worker._process.terminate()
