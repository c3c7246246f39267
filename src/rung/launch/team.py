"""The ranks of a job as one worker: a launcher starts them, here or on other hosts; each call goes to all of them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.launch.channel import Channel, Reply, WorkerFailed, said, unreadable
from rung.launch.process import START, Caller, variables
from rung.launch.rank import TEAM
from rung.side import Launcher

GRACE = 3.0  # seconds in which others may fail, too, once one has: what failed first is told, not what that did to them
LEAVING = 5.0  # seconds in which the ranks say what they printed
HELLO = 4096  # bytes
LOOKING = 0.5  # seconds between looks at whether the launcher still runs


def torchrun(processes: int) -> Launcher:
    """So many ranks on this host, by torch's elastic agent."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]
    return Launcher((*run, "--nproc-per-node", str(processes), START), here=True)


def launcher(text: str) -> Launcher:
    """What a user types: `mpirun -np 8`, `srun --ntasks 8`, `srun torchrun --nnodes 2 --nproc-per-node 8`. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--launcher {text}: {error}.") from None
    if not words:
        raise UsageError("--launcher needs the command that starts the ranks, as in --launcher 'mpirun -np 8'.")
    # torchrun is given a script, and starts Python itself.
    agent = any(Path(word).name == "torchrun" or word == "torch.distributed.run" for word in words)
    return Launcher((*words, *([] if agent else [sys.executable]), START), here=False)


@dataclass
class _Rank:
    """One that joined. ended: how and with what output, as its guard told; None while it runs."""

    number: int
    host: str
    calls: Channel
    guard: Channel
    reply: Reply | None = None
    failed: WorkerFailed | None = None
    ended: dict[str, Any] | None = None

    @property
    def died(self) -> bool:
        """Whether it ended although nobody asked it to."""
        return self.ended is not None and self.ended["status"] is not None


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
        joining: float = 600.0,
    ) -> None:
        self.log, self._combine, self._joining = log, combine, joining
        self._ranks: list[_Rank] = []
        self.answers: list[Any] = []  # of each rank, to the call that was answered last
        self._selector = selectors.DefaultSelector()
        self._token = secrets.token_hex(16)
        self._door = socket.create_server(("127.0.0.1" if launcher.here else "", 0))
        name = "127.0.0.1" if launcher.here else socket.gethostname()
        where = f"{name} {self._door.getsockname()[1]} {self._token}"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [*launcher.words, "rung.launch.rank", serves]
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**variables(env or {}), TEAM: where},
                    cwd=cwd,
                )
            except OSError as error:
                self._door.close()
                raise UsageError(f"the launcher {words[0]!r} cannot be started: {error.strerror}.") from error

    @property
    def hosts(self) -> list[str]:
        """Of each rank."""
        return [rank.host for rank in self._ranks]

    def send(self, method: str, **arguments: Any) -> None:
        """Starts a call on every rank, without waiting for it; `receive` waits. The first one waits until all ranks are there."""
        if self._door.fileno() >= 0 and not self._ranks:
            self._join()
        self._refuse_if_ended(method)
        for rank in self._ranks:
            with contextlib.suppress(OSError):  # `receive` says how it ended
                rank.calls.send({"method": method, "arguments": arguments})

    def receive(self, method: str, deadline: float) -> Any:
        """The combined value of the first call that was not received yet. Where a rank fails, or does not answer within `deadline` seconds, all are ended."""
        self._refuse_if_ended(method)
        until = time.monotonic() + deadline
        while not self._settled(method):
            failing = any(rank.failed or rank.died for rank in self._ranks)
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
        silent = [rank for rank in self._ranks if not rank.reply and not rank.failed and not rank.died]
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
        return all(rank.reply for rank in self._ranks) or any(rank.failed or rank.died for rank in self._ranks)

    def fileno(self) -> int:
        """What `select` waits on."""
        return self._selector.fileno()

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends all ranks, and the launcher; what they printed is in the log afterwards."""
        if self._door.fileno() < 0:
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
        self._write_log()
        self._selector.close()
        for rank in self._ranks:
            rank.calls.close()
            rank.guard.close()
        self._door.close()

    def _join(self) -> None:
        """Waits until every rank has connected, and lets them begin."""
        until = time.monotonic() + self._joining
        doors: dict[tuple[int, bool], tuple[socket.socket, dict[str, Any]]] = {}
        world = 0
        while not world or len(doors) < 2 * world:
            self._door.settimeout(LOOKING)
            try:
                connection, _ = self._door.accept()
            except TimeoutError:
                self._refuse_if_lost(until, world, {rank for rank, serves in doors if serves})
                continue
            if (hello := self._greeted(connection)) is None:
                connection.close()
                continue
            world = int(hello["world"])
            doors[int(hello["rank"]), bool(hello["serves"])] = connection, hello
        first = doors[0, True][1]
        begin = {"MASTER_ADDR": first["address"], "MASTER_PORT": first["port"]}
        for number in range(world):
            (calls, hello), (guard, _) = doors[number, True], doors[number, False]
            rank = _Rank(number, str(hello["host"]), _channel(calls), _channel(guard))
            self._ranks.append(rank)
            for channel in (rank.calls, rank.guard):
                self._selector.register(channel, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                rank.calls.send(begin)

    def _greeted(self, connection: socket.socket) -> dict[str, Any] | None:
        """What a process that connects says of itself; None where it is none of ours."""
        connection.settimeout(LOOKING)
        try:
            line = connection.makefile("rb").readline(HELLO)
            hello = json.loads(line)
            known = secrets.compare_digest(str(hello["token"]), self._token)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        connection.settimeout(None)
        return hello if known else None

    def _refuse_if_lost(self, until: float, world: int, there: set[int]) -> None:
        """Raises WorkerFailed where not all ranks will come."""
        code = self._process.poll()
        if code is None and time.monotonic() < until:
            return
        missing = [str(rank) for rank in range(world) if rank not in there]
        who = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} of {world}" if missing else "any rank"
        self.kill()
        how = f"ended with exit code {code}" if code is not None else f"was stopped after {self._joining:.0f} s"
        raise WorkerFailed(
            f"the launcher {how} before {who} was there.{self._last_line()} Its output: {self.log}", "killed"
        )

    def _settled(self, method: str) -> bool:
        """Takes in what came; whether every rank has answered, failed or ended."""
        for rank in self._ranks:
            while rank.ended is None and rank.guard.answered() and rank.guard.has_line():
                rank.ended = _report(rank.guard.line(time.monotonic()))
            if rank.ended is None and rank.guard.ended:  # its host is gone
                rank.ended = {"status": -1, "output": ""}
            if rank.reply or rank.failed or not rank.calls.answered():
                continue
            if rank.calls.has_line():
                try:
                    rank.reply = Reply(rank.calls.line(time.monotonic()) or b"")
                    rank.failed = rank.reply.failure
                except ValueError:
                    rank.failed = unreadable(method, self.log)
        for channel in [channel for rank in self._ranks for channel in (rank.calls, rank.guard) if channel.ended]:
            with contextlib.suppress(KeyError):  # it would be ready to be read for ever
                self._selector.unregister(channel)
        return all(rank.reply or rank.failed or rank.ended is not None for rank in self._ranks)

    def _failure(self, method: str) -> WorkerFailed | None:
        """What to tell, of all that failed: a rank that died before those that lost their connection to it."""
        for rank in self._ranks:
            if rank.died:
                assert rank.ended
                lines = str(rank.ended["output"]).strip().splitlines()
                last = f" Its last line: {lines[-1][:200]}" if lines else ""
                how = _how(int(rank.ended["status"]))
                return WorkerFailed(
                    f"rank {rank.number} on {rank.host} {how} during {said(method)}.{last} The ranks' output: {self.log}",
                    "killed",
                )
        failed = [rank for rank in self._ranks if rank.failed]
        if not failed:
            return None
        # What is refused, or lacks memory, is a cause; an error of communication may be what came of it elsewhere.
        first = min(failed, key=lambda rank: (rank.failed.kind == "raised", "onnection" in str(rank.failed)))  # type: ignore[union-attr]
        error = first.failed
        assert error
        if len(failed) == len(self._ranks) and len({str(rank.failed) for rank in failed}) == 1:
            return error
        return WorkerFailed(
            f"rank {first.number} of {len(self._ranks)} on {first.host}: {error}",
            error.kind,
            error.traceback,
            error.exit_code,
        )

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f" Its last line: {lines[-1][:200]}" if lines else ""

    def _write_log(self) -> None:
        with self.log.open("a") as log:
            for rank in self._ranks:
                if rank.ended and str(rank.ended["output"]).strip():
                    log.write(f"--- rank {rank.number} on {rank.host}\n{str(rank.ended['output']).rstrip()}\n")

    def _refuse_if_ended(self, method: str) -> None:
        if self._door.fileno() < 0:
            raise WorkerFailed(f"the ranks were ended before {said(method)}. Their output: {self.log}", "killed")


def _channel(connection: socket.socket) -> Channel:
    fd = connection.detach()
    return Channel(fd, fd)


def _report(line: bytes | None) -> dict[str, Any]:
    """What a guard says of the rank's end. status: None where it was asked to end it."""
    try:
        report = json.loads(line or b"")
        status = report["status"]
        return {"status": None if status is None else int(status), "output": str(report["output"])}
    except (ValueError, KeyError, TypeError):
        return {"status": -1, "output": ""}


def _how(status: int) -> str:
    if status < 0:
        return "was lost with its host"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
