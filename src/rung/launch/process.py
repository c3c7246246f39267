"""The coordinator's side of a worker process: start it, call it with a deadline, end it with all its children."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import psutil

from rung.errors import RungError, UsageError
from rung.launch.channel import Channel, Reply, WorkerFailed, last_line_of, said, signal_name, unreadable
from rung.launch.descriptors import readable
from rung.launch.fork_server import Forked, ForkServer
from rung.launch.start import START
from rung.runs import keep, temporary_folder

STARTING = 2.0  # seconds within which a guard has forked the worker that it guards


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


C = TypeVar("C", bound="Caller")


class Caller(abc.ABC):
    """What serves one object, in one process or in several: it is called with a deadline, and ended. Use it as a context manager."""

    log: Path
    spent = 0.0, 0.0  # seconds of the call that was answered last, within the worker, and of its CPU time

    @property
    def hosts(self) -> list[str]:
        """Of each rank; of none where it is no job of several."""
        return []

    @abc.abstractmethod
    def send(self, method: str, **arguments: Any) -> None:
        """Starts a call without waiting for it; `receive` waits."""

    @abc.abstractmethod
    def receive(self, method: str, deadline: float, waited: float = 0.0) -> Any:
        """The value of the call begun last; after `deadline` seconds, of which so many are over, all is ended. Raises WorkerFailed."""

    def call(self, method: str, deadline: float, **arguments: Any) -> Any:
        """Calls a method of the served object; WorkerFailed when it raises, hangs or its process dies."""
        self.send(method, **arguments)
        return self.receive(method, deadline)

    @abc.abstractmethod
    def answered(self) -> bool:
        """Whether `receive` would return, or raise, without waiting."""

    @abc.abstractmethod
    def fileno(self) -> int:
        """What `select` waits on."""

    @abc.abstractmethod
    def alive(self) -> bool: ...

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends it and everything it started."""

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Worker(Caller):
    """One process that serves one object, named `package.module:Class`. forks: has it forked, where its variables and folder allow."""

    running: ClassVar[set[Worker]] = set()  # those of this process that were not ended yet

    def __init__(
        self,
        serves: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        request_read, requests = os.pipe()
        replies, reply_write = os.pipe()
        self._channel = Channel(replies, requests)
        lifeline_read, self._lifeline = os.pipe()
        theirs = (request_read, reply_write, lifeline_read)
        try:
            self._process = _started(serves, log, variables(env or {}), cwd, theirs, forks)
        except BaseException:  # such as Ctrl-C while a fork server imports
            self._channel.close()  # so that what it forks ends
            os.close(self._lifeline)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        Worker.running.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, method: str, **arguments: Any) -> None:
        self._refuse_if_ended(method)
        try:
            self._channel.send({"method": method, "arguments": arguments})
        except BrokenPipeError:
            raise self._ended(method) from None

    def receive(self, method: str, deadline: float, waited: float = 0.0) -> Any:
        self._refuse_if_ended(method)
        try:
            line = self._channel.line(time.monotonic() + deadline - waited)
        except EOFError:
            raise self._ended(method) from None
        if line is None:
            self.kill()
            raise WorkerFailed(
                f"{said(method)} did not end within its deadline of {deadline:.0f} s; the worker was stopped. "
                f"Its output: {self.log}",
                "hung",
            )
        try:
            reply = Reply(line)
        except ValueError:
            self.kill()
            raise unreadable(method, self.log) from None
        self.spent = reply.spent
        if reply.failure:
            raise reply.failure
        return reply.value

    def _refuse_if_ended(self, method: str) -> None:
        if self._channel.closed:
            raise WorkerFailed(f"the worker was ended before {said(method)}. Its output: {self.log}", "killed")

    def answered(self) -> bool:
        return self._channel.answered()

    def _ended(self, method: str) -> WorkerFailed:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return WorkerFailed(
            f"the worker {how} during {said(method)}.{last_line_of(self.log)} Its output: {self.log}", "killed"
        )

    def kill(self) -> None:
        Worker.running.discard(self)
        if self._channel.closed:  # it was ended before, and another process may have its number by now
            return
        # Nothing holds the number of a fork that has ended.
        gone = isinstance(self._process, Forked) and self._process.poll() is not None
        self._process.terminate()  # its guard ends all that is below it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # where the guard could not
            if not gone:
                os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._channel.close()
        os.close(self._lifeline)

    def alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        return self._channel.fileno()


def _started(
    serves: str, log: Path, env: dict[str, str], cwd: Path | None, fds: tuple[int, ...], forks: ForkServer | None
) -> subprocess.Popen[bytes] | Forked:
    """The process of a worker, forked where that can be."""
    with log.open("ab") as output:
        if forks is not None and cwd is None and (forked := forks.fork(serves, env, fds, output.fileno())):
            return forked
        return subprocess.Popen(
            [sys.executable, START, "rung.launch.worker", *map(str, fds), serves],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=fds,
            start_new_session=True,  # its own process group, so that one signal ends it with its compilers
            env=env,
            cwd=cwd,
        )


@contextlib.contextmanager
def quiet(timed: Collection[Caller]) -> Iterator[None]:
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


def first_answer(workers: Collection[Caller], seconds: float) -> list[Caller]:
    """Those that have answered, as soon as any has, or none after so many seconds."""
    ready = [worker for worker in workers if worker.answered()]
    if ready or not workers:
        return ready
    readable(workers, seconds)
    return [worker for worker in workers if worker.answered()]


def kill_all(workers: Iterable[Caller]) -> None:
    """Ends many at once: each takes a moment, which is not waited for one after the other. The ranks of a job are asked one job after the
    other."""
    given = list(workers)
    for worker in [running for running in Worker.running if any(running is one for one in given)]:
        worker._process.terminate()
