"""Files that ranks write, brought to the folder of their coordinator, whole or not at all, from hosts that share no files with it.

A rank connects before it begins, and says afterwards what it wrote, with sizes and SHA-256. Where it sees the coordinator's folder, by a
mark in it, it writes there itself and the coordinator reads what has arrived; elsewhere it sends its files. So a file that is missing, cut
off or changed is named with its rank and host.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from rung.errors import WorkloadError
from rung.hardware.ranks import Ranks
from rung.launch.descriptors import make_room
from rung.launch.rendezvous import reached_at

FILES = "RUNG_FILES"  # a variable: where the coordinator listens, its token, and its folder
MARK = ".rung-ranks-{}"  # in that folder
CONNECTING = 20.0  # seconds
ENDING = 10.0  # seconds in which what is on its way may arrive, once the ranks have ended
CHUNK = 1 << 20  # bytes
LONGEST = 1 << 16  # bytes of a line


@dataclass
class _From:
    """What a rank has said. lacking: of its files, why one is not there; ended: it has said all."""

    host: str
    world: int
    lacking: list[str] = field(default_factory=list)
    ended: bool = False


class Gathering:
    """The coordinator's side, as a context manager. folder: gets the files; here: all ranks are on this host."""

    def __init__(self, folder: Path, here: bool) -> None:
        self._folder, self._ranks = folder, dict[int, _From]()
        self._token = secrets.token_hex(16)
        self._mark = folder / MARK.format(secrets.token_hex(8))
        gathering = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(
                    OSError, ValueError, KeyError, TypeError
                ):  # what breaks off is missing afterwards
                    gathering._take(self.rfile, self.wfile)  # type: ignore[arg-type]

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1" if here else "", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        port, mark = self._server.server_address[1], self._mark.name
        self.variables = {FILES: json.dumps([reached_at(here), port, self._token, str(folder), mark])}

    def __enter__(self) -> Gathering:
        self._mark.touch()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        until = time.monotonic() + (ENDING if kind is None else 0.0)
        while any(not rank.ended for rank in self._ranks.values()) and time.monotonic() < until:
            time.sleep(0.05)
        self._server.shutdown()
        self._server.server_close()
        self._mark.unlink(missing_ok=True)

    def lacking(self) -> list[str]:
        """A sentence for each file that is not there as its rank wrote it, and for each rank that never came; of none where no rank
        could say anything."""
        found = []
        for number, rank in sorted(self._ranks.items()):
            of = f"rank {number} on {rank.host}"
            found += [f"{why}, of {of}." for why in rank.lacking]
            if not rank.ended:
                found.append(f"{of} ended before it listed its files: they are missing or incomplete.")
        world = max((rank.world for rank in self._ranks.values()), default=0)
        absent = sorted(set(range(world)) - set(self._ranks))
        return found + [f"rank {number} of {world} never listed its files: they may be missing." for number in absent]

    def _take(self, heard: BinaryIO, answers: BinaryIO) -> None:
        """All that one rank says."""
        hello = json.loads(heard.readline(LONGEST))
        if not secrets.compare_digest(str(hello["token"]).encode(), self._token.encode()):
            return
        rank = self._ranks[int(hello["rank"])] = _From(str(hello["host"]), int(hello["world"]))
        make_room(2 * rank.world)  # a connection and a file of each rank
        while line := heard.readline(LONGEST):
            told = json.loads(line)
            if told.get("done"):
                rank.ended = True
            elif why := self._took(
                heard, str(told["name"]), int(told["size"]), str(told["sha256"]), bool(told["sent"])
            ):
                rank.lacking.append(why)
            answers.write(b"{}\n")
            answers.flush()

    def _took(self, heard: BinaryIO, name: str, size: int, sha256: str, sent: bool) -> str:
        """Takes a file in, or reads it where it is; why it is not as it should be, or nothing."""
        given = PurePosixPath(name)
        if given.is_absolute() or ".." in given.parts:
            raise ValueError(f"{name} lies outside the folder")
        path = self._folder / given
        found, digest = 0, hashlib.sha256()
        partial = path.with_name(f".{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as open_:
                if sent:  # one may be there of a killed process; or a stranger's link, which would lead elsewhere
                    partial.unlink(missing_ok=True)
                into = open_.enter_context(partial.open("xb")) if sent else None
                source = heard if sent else open_.enter_context(path.open("rb"))
                while chunk := source.read(min(CHUNK, size - found) if sent else CHUNK):
                    found += len(chunk)
                    digest.update(chunk)
                    if into:
                        into.write(chunk)
            if found == size and digest.hexdigest() == sha256:
                if sent:
                    os.replace(partial, path)
                return ""
        except OSError as error:
            if sent:  # the rank sends all of it, and its next file after that
                _skip(heard, size - found)
            return f"{name} could not be {'written' if sent else 'read'}: {error.strerror}"
        finally:
            with contextlib.suppress(OSError):  # where its folder is a file, say
                partial.unlink()
        if found != size:
            return f"{name} is cut off: {found:,} of {size:,} bytes arrived"
        return f"{name} changed on the way: its SHA-256 differs"


def _skip(heard: BinaryIO, size: int) -> None:
    while size > 0 and (chunk := heard.read(min(CHUNK, size))):
        size -= len(chunk)


class Writing:
    """A rank's side. `place` says where a file may be written; `told` hands it over."""

    def __init__(self, root: Path | None, connection: socket.socket | None, shared: bool, own: Path) -> None:
        self._root, self._connection, self._shared, self._own = root, connection, shared, own

    def place(self, path: str) -> Path:
        """Where to write what the coordinator wants at `path`, which is below its folder."""
        if self._shared or self._root is None:
            return Path(path)
        place = self._own / Path(path).relative_to(self._root)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def told(self, path: Path) -> None:
        """Hands over a file that was written at a place of `place`."""
        if self._connection is None:
            return
        base = self._root if self._shared else self._own
        assert base
        size, digest = 0, hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                size += len(chunk)
                digest.update(chunk)
            name = str(path.relative_to(base))
            self._say({"name": name, "size": size, "sha256": digest.hexdigest(), "sent": not self._shared})
            if not self._shared:
                file.seek(0)
                self._connection.sendfile(file)
        self._heard()

    def done(self) -> None:
        if self._connection:
            self._say({"done": True})
            self._heard()

    def _say(self, document: object) -> None:
        assert self._connection
        self._connection.sendall(json.dumps(document).encode() + b"\n")

    def _heard(self) -> None:
        """Waits until it was taken in."""
        assert self._connection
        if not self._connection.recv(3):
            raise OSError("the coordinator no longer accepts files")


HERE = Writing(None, None, True, Path())  # of a process that is alone


@contextlib.contextmanager
def writing() -> Iterator[Writing]:
    """Of a rank whose coordinator gathers files; elsewhere files stay where they are written."""
    if FILES not in os.environ:
        yield HERE
        return
    host, port, token, root, mark = json.loads(os.environ[FILES])
    ranks = Ranks.here
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(socket.create_connection((host, port), CONNECTING))
        except OSError as error:
            raise WorkloadError(
                f"rank {ranks.rank} on {socket.gethostname()} cannot reach {host}, port {port}, to send its files ({error}): open that port between the hosts."
            ) from None
        connection.settimeout(None)
        shared = (Path(root) / mark).exists()
        own = Path(tempfile.mkdtemp(prefix="rung-rank-"))
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        made = Writing(Path(root), connection, shared, own)
        made._say({"token": token, "rank": ranks.rank, "world": ranks.world, "host": socket.gethostname()})
        yield made
        made.done()
