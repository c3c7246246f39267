"""How the ranks of a job come to their coordinator: each connects twice, and proves that it was asked to come (`rank.py`)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import secrets
import selectors
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from rung.launch.channel import Channel, WorkerFailed, last_line_of
from rung.launch.descriptors import make_room

REACHED_BY = "RUNG_HOST"  # a variable: the name by which other hosts reach this one, where they do not by its own
JOINING = 600.0  # seconds in which all ranks, or hosts, have to be there: a job may wait in a queue
STARTING = 60.0  # that they have in any case, to start Python on every host and to connect
HELLO, HELLO_SECONDS = 4096, 20.0  # bytes, and how long one may take to say them
LOOKING = 0.5  # seconds between looks at whether the launcher still runs


def reached_at(here: bool) -> str:
    """The name by which ranks reach this process. here: all of them are on this host."""
    return "127.0.0.1" if here else os.environ.get(REACHED_BY) or socket.gethostname()


def joining(left: float) -> float:
    """Seconds to wait for all ranks. left: of the budget of the command that needs them."""
    return min(JOINING, max(STARTING, left))


@dataclass(frozen=True)
class Joined:
    """A rank that has come. calls: what it serves; guard: what says how it ended."""

    number: int
    host: str
    calls: Channel
    guard: Channel


@dataclass(frozen=True)
class _Hello:
    """What a process that connects says of itself. serves: this connection takes calls, and is not the guard's; address, port: where
    others may meet it, of one that serves."""

    rank: int
    world: int
    serves: bool
    host: str
    address: str
    port: int

    @classmethod
    def read(cls, line: bytes, token: str) -> _Hello | None:
        """None of a process that is none of ours."""
        try:
            said = json.loads(line)
            known = secrets.compare_digest(str(said["token"]).encode(), token.encode())
            place = int(said["rank"]), int(said["world"]), bool(said["serves"])
            meeting = str(said.get("address", "")), int(said.get("port", 0))
            return cls(*place, str(said["host"]), *meeting) if known else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


class Rendezvous:
    """Where the ranks of one job connect. address: tells a rank where, with the token that proves that it was asked to come.

    here: all ranks are on this host; log: of the launcher, for errors to name.
    """

    def __init__(self, here: bool, log: Path) -> None:
        self._log = log
        self._token = secrets.token_hex(16)
        self._door = socket.create_server(("127.0.0.1" if here else "", 0), backlog=1024)
        self._door.setblocking(False)
        self.address = f"{reached_at(here)} {self._door.getsockname()[1]} {self._token}"
        self._guests: dict[socket.socket, _Guest] = {}
        self._arrived: dict[tuple[int, bool], tuple[socket.socket, _Hello]] = {}  # by rank, and whether it serves
        self._world = 0  # how many ranks there are, once one has said so

    @property
    def closed(self) -> bool:
        return self._door.fileno() < 0

    def close(self) -> None:
        self._door.close()

    def joined(self, seconds: float, launcher: subprocess.Popen[bytes]) -> list[Joined]:
        """Waits until every rank has both its connections, and lets them begin. Raises WorkerFailed where they do not come within so many
        seconds, or before their launcher ends."""
        until = time.monotonic() + seconds
        try:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._door, selectors.EVENT_READ)
                while not self._world or len(self._arrived) < 2 * self._world:
                    if (code := launcher.poll()) is not None:
                        raise self._lost(f"ended with exit code {code}")
                    if time.monotonic() > until:
                        raise self._lost(f"was stopped after {seconds:.0f} s")
                    for key, _ in waiting.select(LOOKING):
                        assert isinstance(key.fileobj, socket.socket)
                        self._take_in(key.fileobj, waiting)
                    self._turn_away(waiting)
        except BaseException:
            for connection, _ in self._arrived.values():
                connection.close()
            raise
        finally:
            for guest in self._guests:
                guest.close()
        return self._begun()

    def _take_in(self, ready: socket.socket, waiting: selectors.BaseSelector) -> None:
        """A connection, or what one of them says."""
        if ready is self._door:
            if connection := self._accepted():
                waiting.register(connection, selectors.EVENT_READ)
                self._guests[connection] = _Guest(time.monotonic() + HELLO_SECONDS)
        elif hello := self._guests[ready].heard(ready, self._token):
            waiting.unregister(ready)
            ready.setblocking(True)
            place = hello.rank, hello.serves
            if place in self._arrived or hello.world != (self._world or hello.world):
                raise WorkerFailed(
                    f"two processes call themselves rank {hello.rank}, or one counts {self._world} ranks and another {hello.world}: the "
                    f"launcher must number each rank once. Its output: {self._log}", "killed",
                )  # fmt: skip
            if not self._world:
                make_room(2 * hello.world)
            del self._guests[ready]
            self._world, self._arrived[place] = hello.world, (ready, hello)

    def _accepted(self) -> socket.socket | None:
        """A process that connects; None where it has left again. Raises WorkerFailed where this process can open no more files."""
        try:
            connection = self._door.accept()[0]
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return None
            if error.errno == errno.EMFILE and make_room(2 * max(1, self._world)):  # the next look accepts it
                return None
            most = f" (at most {resource.getrlimit(resource.RLIMIT_NOFILE)[1]})" if error.errno == errno.EMFILE else ""
            raise WorkerFailed(
                f"{socket.gethostname()} allows too few open files{most} for the two connections of each rank: raise the limit "
                f"(`ulimit -Hn`, or nofile in /etc/security/limits.conf) or start fewer ranks. The launcher's output: {self._log}",
                "killed",
            ) from None
        connection.setblocking(False)
        return connection

    def _turn_away(self, waiting: selectors.BaseSelector) -> None:
        """Those who are no ranks, or do not say who they are."""
        for gone in [guest for guest, state in self._guests.items() if state.over(time.monotonic())]:
            del self._guests[gone]
            waiting.unregister(gone)
            gone.close()

    def _lost(self, how: str) -> WorkerFailed:
        """For ranks that will not come. how: what became of their launcher."""
        missing = [str(rank) for rank in range(self._world) if (rank, True) not in self._arrived]
        who = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} of {self._world}" if missing else "any rank"
        return WorkerFailed(
            f"the launcher {how} before {who} connected.{last_line_of(self._log)} Its output: {self._log}", "killed"
        )

    def _begun(self) -> list[Joined]:
        """All ranks, in their order, which are told where they meet: where the first one offered."""
        first = self._arrived[0, True][1]
        joined = []
        for number in range(self._world):
            (calls, hello), (guard, _) = self._arrived[number, True], self._arrived[number, False]
            joined.append(Joined(number, hello.host, _channel(calls), _channel(guard)))
            with contextlib.suppress(OSError):  # one that left meanwhile fails at its first call
                joined[-1].calls.send({"MASTER_ADDR": first.address, "MASTER_PORT": first.port})
        return joined


class _Guest:
    """A connection that has not said yet who it is; until: by `time.monotonic`, when it has to."""

    def __init__(self, until: float) -> None:
        self._until, self._heard, self._left = until, b"", False

    def heard(self, connection: socket.socket, token: str) -> _Hello | None:
        """Who it is, once it has said all; None before, and where it is none of ours."""
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
        return _Hello.read(self._heard, token)

    def over(self, now: float) -> bool:
        return self._left or now > self._until


def _channel(connection: socket.socket) -> Channel:
    fd = connection.detach()
    return Channel(fd, fd)
