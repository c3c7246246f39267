"""The ranks of a job as one worker: a launcher starts them, here or on other hosts; each call goes to all of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.launch.channel import (
    Channel,
    Reply,
    WorkerFailed,
    last_line,
    last_line_of,
    said,
    signal_name,
    unreadable,
)
from rung.launch.launchers import filled
from rung.launch.process import Caller, variables
from rung.launch.rank import NAMES, TEAM
from rung.launch.rendezvous import JOINING, Rendezvous
from rung.side import Launcher

GRACE = 3.0  # seconds in which others may fail, too, once one has: what failed first is told, not what that did to them
LOST = -1  # the status of a rank of which nothing is known any more
LEAVING = 5.0  # seconds in which the ranks say what they printed
LOOKING = 0.5  # seconds between looks at the ranks, while an answer is waited for
# What a rank says whose connection to another one ended: sockets, NCCL and RCCL, gloo, torch's stores.
LOST_OTHERS = re.compile(
    r"onnection|[Bb]roken pipe|remote process|unhandled system error|communicator was aborted|gloo/|^Dist(Network|Store)Error:"
)


@dataclass(frozen=True)
class _End:
    """How a rank ended. status: as `os.waitpid` says it, LOST where nobody knows, None where somebody asked it to end; at: when that was
    heard of, by `time.monotonic`."""

    status: int | None
    output: str
    at: float


@dataclass
class _Rank:
    """One that joined. ended: how and with what output, as its guard told; None while it runs."""

    number: int
    host: str
    calls: Channel
    guard: Channel
    reply: Reply | None = None
    failed: WorkerFailed | None = None
    answered_at: float = 0.0  # as `_End.at`
    ended: _End | None = None


class Team(Caller):
    """Use it as a context manager, as a Worker.

    launcher: starts the ranks. combine: makes one answer of those of all ranks, in their order: `(method, answers) -> answer`. log: gets
    what the launcher and the ranks print; theirs comes when they end. joining: seconds in which all ranks have to be there.
    """

    def __init__(
        self,
        serves: str,
        log: Path,
        launcher: Launcher,
        combine: Callable[[str, list[Any]], Any],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        joining: float = JOINING,
    ) -> None:
        self.log, self._combine, self._joining = log, combine, joining
        self._ranks: list[_Rank] = []
        self.answers: list[Any] = []  # of each rank, to the call that was answered last
        self._selector = selectors.DefaultSelector()
        self._rendezvous = Rendezvous(launcher.here, log)
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [*filled(launcher.words), "rung.launch.rank", serves]
        # torchrun sets one thread for several ranks, and none for one: how a job scales is told of equal ones.
        given = {"OMP_NUM_THREADS": "1", **_without_places(variables(env or {})), TEAM: self._rendezvous.address}
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=given,
                    cwd=cwd,
                )
            except OSError as error:
                self._rendezvous.close()
                raise UsageError(f"the launcher {words[0]!r} cannot be started: {error.strerror}.") from error

    @property
    def hosts(self) -> list[str]:
        """Of each rank."""
        return [rank.host for rank in self._ranks]

    def send(self, method: str, **arguments: Any) -> None:
        """Starts a call on every rank, without waiting for it; `receive` waits. The first one waits until all ranks are there."""
        if not self._ranks and not self._rendezvous.closed:
            self._join()
        self._refuse_if_ended(method)
        for rank in self._ranks:
            with contextlib.suppress(OSError):  # `receive` says how it ended
                rank.calls.send({"method": method, "arguments": arguments})

    def receive(self, method: str, deadline: float, waited: float = 0.0) -> Any:
        """The combined value of the first call that was not received yet. Where a rank fails, or does not answer within `deadline` seconds, all are ended."""
        self._refuse_if_ended(method)
        until = time.monotonic() + deadline - waited
        while not self._settled(method):
            failing = any(rank.failed or rank.ended for rank in self._ranks)
            if failing:
                until = min(until, time.monotonic() + GRACE)
            if time.monotonic() > until:
                break
            self._selector.select(min(LOOKING, max(0.0, until - time.monotonic())))
        if all(rank.reply and not rank.failed for rank in self._ranks):
            replies = [rank.reply for rank in self._ranks if rank.reply]
            self.spent = max(reply.spent[0] for reply in replies), max(reply.spent[1] for reply in replies)
            self.answers = [reply.value for reply in replies]
            for rank in self._ranks:  # the next one may have come already
                rank.reply = None
            return self._combine(method, self.answers)
        silent = [rank for rank in self._ranks if not rank.reply and not rank.failed and not rank.ended]
        failed = self._failure(method)
        self.kill()
        if failed:
            raise failed
        names = ", ".join(f"{rank.number} ({rank.host})" for rank in silent)
        raise WorkerFailed(
            f"{said(method)} did not end within its deadline of {deadline:.0f} s on rank{'s' * (len(silent) > 1)} {names}; all "
            f"ranks were stopped. Their output: {self.log}",
            "hung",
        )

    def answered(self) -> bool:
        """Whether `receive` would return, or raise, within a few seconds."""
        self._settled("")
        return all(rank.reply for rank in self._ranks) or any(rank.failed or rank.ended for rank in self._ranks)

    def fileno(self) -> int:
        """What `select` waits on."""
        return self._selector.fileno()

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends all ranks, and the launcher; what they printed is in the log afterwards."""
        if self._rendezvous.closed:
            return
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.guard.send({"end": True})
        until = time.monotonic() + LEAVING
        while any(not rank.ended and not rank.guard.ended for rank in self._ranks) and time.monotonic() < until:
            self._selector.select(until - time.monotonic())
            self._settled("")
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=LEAVING)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for rank in self._ranks:
            rank.calls.close()
            rank.guard.close()
        self._rendezvous.close()
        self._write_log()  # once there is a file descriptor for it again

    def _join(self) -> None:
        """Waits until every rank has come."""
        try:
            joined = self._rendezvous.joined(self._joining, self._process)
        except BaseException:
            self.kill()
            raise
        for one in joined:
            self._ranks.append(_Rank(one.number, one.host, one.calls, one.guard))
            for channel in (one.calls, one.guard):
                self._selector.register(channel, selectors.EVENT_READ)

    def _settled(self, method: str) -> bool:
        """Takes in what came; whether every rank has answered, failed or ended."""
        for rank in self._ranks:
            while rank.ended is None and rank.guard.answered() and rank.guard.has_line():
                rank.ended = _report(rank.guard.line(time.monotonic()))
            if rank.ended is None and rank.guard.ended:  # its host is gone
                rank.ended = _End(LOST, "", time.monotonic())
            if rank.reply or rank.failed or not rank.calls.answered():
                continue
            if rank.calls.has_line():
                try:
                    rank.reply = Reply(rank.calls.line(time.monotonic()) or b"")
                    rank.failed = rank.reply.failure
                except ValueError:
                    rank.failed = unreadable(method, self.log)
                rank.answered_at = time.monotonic()
        for channel in [channel for rank in self._ranks for channel in (rank.calls, rank.guard) if channel.ended]:
            with contextlib.suppress(KeyError):  # it would be ready to be read for ever
                self._selector.unregister(channel)
        return all(rank.reply or rank.failed or rank.ended is not None for rank in self._ranks)

    def _failure(self, method: str) -> WorkerFailed | None:
        """What to tell, of all that failed: the cause, and not what it did to the other ranks."""
        broken = [(precedence, rank) for rank in self._ranks if (precedence := _precedence(rank))]
        if not broken:
            if not any(rank.ended for rank in self._ranks):
                return None
            return WorkerFailed(
                f"the launcher, or the process that started it, ended the ranks during {said(method)}.{last_line_of(self.log)} Their output: {self.log}",
                "killed",
            )
        _, first = min(broken, key=lambda one: one[0])
        error, end = first.failed, first.ended
        if not error:
            assert end
            assert end.status is not None
            return WorkerFailed(
                f"rank {first.number} on {first.host} {_how(end.status)} during {said(method)}.{last_line(end.output)} The ranks' output: {self.log}",
                "killed",
            )
        if all(rank.failed for rank in self._ranks) and len({str(rank.failed) for rank in self._ranks}) == 1:
            return error
        return WorkerFailed(
            f"rank {first.number} of {len(self._ranks)} on {first.host}: {error}",
            error.kind,
            error.traceback,
            error.exit_code,
        )

    def _write_log(self) -> None:
        # What failed is told, also where the disk is full.
        with contextlib.suppress(OSError), self.log.open("a") as log:
            for rank in self._ranks:
                if rank.ended and rank.ended.output.strip():
                    log.write(f"--- rank {rank.number} on {rank.host}\n{rank.ended.output.rstrip()}\n")
                if rank.failed and rank.failed.traceback:
                    log.write(
                        f"--- rank {rank.number} on {rank.host}, {rank.failed.kind}\n{rank.failed.traceback.rstrip()}\n"
                    )

    def _refuse_if_ended(self, method: str) -> None:
        if self._rendezvous.closed:
            raise WorkerFailed(f"the ranks were ended before {said(method)}. Their output: {self.log}", "killed")


def _precedence(rank: _Rank) -> tuple[int, float] | None:
    """Smaller for what is rather the cause of what the other ranks did, and then for what was heard of first; None of a rank that has not
    failed. A rank that ended after it had answered with an error is told by the error: torch's watchdog aborts ranks after one."""
    if rank.failed:
        if rank.failed.kind != "raised":  # what is refused, or lacks memory, is a cause
            return 0, rank.answered_at
        return 3 if LOST_OTHERS.search(str(rank.failed)) else 1, rank.answered_at
    if rank.ended and rank.ended.status is not None:
        return 2 if _follows(rank.ended.status) else 1, rank.ended.at
    return None


def _without_places(variables: Mapping[str, str]) -> dict[str, str]:
    """Without what says which rank this process is, in a job of somebody else's. SLURM's own say where srun runs."""
    said = {name for names in NAMES if not names[0].startswith("SLURM") for name in names} | {
        "MASTER_ADDR",
        "MASTER_PORT",
    }
    return {name: value for name, value in variables.items() if name not in said}


def _report(line: bytes | None) -> _End:
    """What a guard says of the rank's end."""
    now = time.monotonic()
    try:
        report = json.loads(line or b"")
        status = report["status"]
        return _End(None if status is None else int(status), str(report["output"]), now)
    except (ValueError, KeyError, TypeError):
        return _End(LOST, "", now)


def _follows(status: int) -> bool:
    """Whether this end may be what the end of another rank did to it: NCCL's watchdog aborts ranks that wait for one that is gone."""
    return status == LOST or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT)


def _how(status: int) -> str:
    if status == LOST:
        return "was lost with its host"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
