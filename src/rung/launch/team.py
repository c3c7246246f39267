"""The ranks of a job as one worker: a launcher starts them, here or on other hosts; each call goes to all of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.launch.channel import Channel, Reply, WorkerFailed, last_line, said, signal_name, unreadable
from rung.launch.descriptors import make_room
from rung.launch.process import Caller, variables
from rung.launch.rank import NAMES, TEAM
from rung.launch.start import START
from rung.side import Launcher

PORT, NAME = "{port}", "{team}"  # in a launcher's words: a free port of this host, and a name that no other team has
REACHED_BY = "RUNG_HOST"  # a variable: the name by which other hosts reach this one, where they do not by its own
GRACE = 3.0  # seconds in which others may fail, too, once one has: what failed first is told, not what that did to them
LOST = -1  # the status of a rank of which nothing is known any more
LEAVING = 5.0  # seconds in which the ranks say what they printed
HELLO, HELLO_SECONDS = 4096, 20.0  # bytes, and how long one may take to say them
LOOKING = 0.5  # seconds between looks at whether the launcher still runs
# What a rank says whose connection to another one ended: sockets, NCCL and RCCL, gloo, torch's stores.
LOST_OTHERS = re.compile(
    r"onnection|[Bb]roken pipe|remote process|unhandled system error|communicator was aborted|gloo/|^Dist(Network|Store)Error:"
)


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
    return Launcher((*words, *([] if agent else [sys.executable]), START), here=False, meets=agent)


# The connections of each rank, by its number and whether it serves, with its hello.
_Doors = dict[tuple[int, bool], tuple[socket.socket, dict[str, Any]]]


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
        joining: float = 600.0,
    ) -> None:
        self.log, self._combine, self._joining = log, combine, joining
        self._ranks: list[_Rank] = []
        self.answers: list[Any] = []  # of each rank, to the call that was answered last
        self._selector = selectors.DefaultSelector()
        self._token = secrets.token_hex(16)
        self._door = socket.create_server(("127.0.0.1" if launcher.here else "", 0), backlog=1024)
        name = "127.0.0.1" if launcher.here else os.environ.get(REACHED_BY) or socket.gethostname()
        where = f"{name} {self._door.getsockname()[1]} {self._token}"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [*filled(launcher.words), "rung.launch.rank", serves]
        with log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    # torchrun sets one thread for several ranks, and none for one: how a job scales is told of equal ones.
                    env={"OMP_NUM_THREADS": "1", **_without_places(variables(env or {})), TEAM: where},
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
        self._selector.close()
        for rank in self._ranks:
            rank.calls.close()
            rank.guard.close()
        self._door.close()
        self._write_log()  # once there is a file descriptor for it again

    def _join(self) -> None:
        """Waits until every rank has connected, and lets them begin."""
        doors: _Doors = {}
        guests: dict[socket.socket, _Guest] = {}
        try:
            with selectors.DefaultSelector() as waiting:
                world = self._all_ranks(doors, guests, waiting)
        except BaseException:
            for connection, _ in doors.values():
                connection.close()
            self.kill()
            raise
        finally:
            for guest in guests:
                guest.close()
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

    def _all_ranks(self, doors: _Doors, guests: dict[socket.socket, _Guest], waiting: selectors.BaseSelector) -> int:
        """Fills `doors` until every rank has both its connections, and returns how many ranks there are."""
        until = time.monotonic() + self._joining
        self._door.setblocking(False)
        waiting.register(self._door, selectors.EVENT_READ)
        world = 0
        while not world or len(doors) < 2 * world:
            self._refuse_if_lost(until, world, {rank for rank, serves in doors if serves})
            for key, _ in waiting.select(LOOKING):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._door:
                    if connection := self._accepted(world):
                        waiting.register(connection, selectors.EVENT_READ)
                        guests[connection] = _Guest(time.monotonic() + HELLO_SECONDS)
                elif hello := guests[ready].heard(ready, self._token):
                    waiting.unregister(ready)
                    ready.setblocking(True)
                    place = int(hello["rank"]), bool(hello["serves"])
                    if place in doors or int(hello["world"]) != (world or int(hello["world"])):
                        self.kill()
                        raise WorkerFailed(
                            f"two processes call themselves rank {place[0]}, or one counts {world} ranks and another {hello['world']}: the launcher "
                            f"must number each rank once. Its output: {self.log}", "killed",
                        )  # fmt: skip
                    if not world:
                        make_room(2 * int(hello["world"]))
                    del guests[ready]
                    world, doors[place] = int(hello["world"]), (ready, hello)
            for gone in [guest for guest, state in guests.items() if state.over(time.monotonic())]:
                del guests[gone]
                waiting.unregister(gone)
                gone.close()
        return world

    def _accepted(self, world: int) -> socket.socket | None:
        """A process that connects; None where it has left again. Raises WorkerFailed where this process can open no more files."""
        try:
            connection = self._door.accept()[0]
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return None
            if error.errno == errno.EMFILE and make_room(2 * max(1, world)):  # the next look accepts it
                return None
            most = f" (at most {resource.getrlimit(resource.RLIMIT_NOFILE)[1]})" if error.errno == errno.EMFILE else ""
            raise WorkerFailed(
                f"{socket.gethostname()} allows too few open files{most} for the two connections of each rank: raise the limit "
                f"(`ulimit -Hn`, or nofile in /etc/security/limits.conf) or start fewer ranks. The launcher's output: {self.log}",
                "killed",
            ) from None
        connection.setblocking(False)
        return connection

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
            f"the launcher {how} before {who} connected.{self._last_line()} Its output: {self.log}", "killed"
        )

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
                f"the launcher, or the process that started it, ended the ranks during {said(method)}.{self._last_line()} Their output: {self.log}",
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

    def _last_line(self) -> str:
        return last_line(self.log.read_text(errors="replace")) if self.log.exists() else ""

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
        if self._door.fileno() < 0:
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


class _Guest:
    """A connection that has not said yet who it is; until: by `time.monotonic`, when it has to."""

    def __init__(self, until: float) -> None:
        self._until, self._heard, self._left = until, b"", False

    def heard(self, connection: socket.socket, token: str) -> dict[str, Any] | None:
        """What a process that connects says of itself, once it has said all; None before, and where it is none of ours."""
        try:
            chunk = connection.recv(HELLO)
        except BlockingIOError:
            return None
        except OSError:
            chunk = b""
        self._heard += chunk
        if not chunk or len(self._heard) > HELLO:
            self._left = True
        if b"\n" not in self._heard:
            return None
        self._left = True
        try:
            hello = json.loads(self._heard)
            known = secrets.compare_digest(str(hello["token"]).encode(), token.encode())
            int(hello["rank"]), int(hello["world"]), bool(hello["serves"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return hello if known else None

    def over(self, now: float) -> bool:
        return self._left or now > self._until


def filled(words: Sequence[str]) -> list[str]:
    """A launcher's words with a port and a name of this team in the places of PORT and NAME."""
    port, name = str(_free_port()), secrets.token_hex(4)
    return [word.replace(PORT, port).replace(NAME, name) for word in words]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _without_places(variables: Mapping[str, str]) -> dict[str, str]:
    """Without what says which rank this process is, in a job of somebody else's. SLURM's own say where srun runs."""
    said = {name for names in NAMES if not names[0].startswith("SLURM") for name in names} | {
        "MASTER_ADDR",
        "MASTER_PORT",
    }
    return {name: value for name, value in variables.items() if name not in said}


def _channel(connection: socket.socket) -> Channel:
    fd = connection.detach()
    return Channel(fd, fd)


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
