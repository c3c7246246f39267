"""A process that has imported what workers need, and forks them: they begin at once, where each would import for seconds.

    python start.py rung.launch.fork_server SOCKET_FD PARENT MODULE...

It answers a message, the name of what a worker serves and five file descriptors, with the number of the process that it forked. All forks have
its addresses and its hash seed. So what has to be an independent sample of processes is started afresh. A GPU cannot be used in a fork of a
process that has used it: the modules must not touch one.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from rung.launch.descriptors import readable
from rung.launch.start import START
from rung.launch.worker import guarded, serve
from rung.prctl import end_with_parent

LONGEST = 1 << 10  # bytes of a message
IMPORTING = 600.0  # seconds, after which a server that has not answered is done without
FDS = 5  # that come with one: for requests, replies and the lifeline of a worker, for how it ended, and its log
POOL = "TORCH_WARM_POOL"
NO_PROCESS = b"0"  # the answer where the system gives none

spared: dict[str, float] = {}  # where this process is a fork: seconds that its server took to import each module


class ForkServer:
    """The coordinator's side: starts the process at the first fork, with the variables of that. Use it as a context manager.

    modules: what it imports, the first one before the first fork, for which all else waits, the others before the second; log: what it prints
    while it imports.
    """

    def __init__(self, modules: Sequence[str], log: Path) -> None:
        self._modules, self._log = modules, log
        self._env: dict[str, str] = {}
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.ended = False
        self.imported_in = 0.0  # seconds of the first module, once it has forked

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        if self._socket is not None and self._process is not None:
            self._socket.close()  # which ends it; its forks end as their own coordinator wants
            self._process.kill()
            self._process.wait()

    def fork(self, serves: str, env: Mapping[str, str], fds: Sequence[int], log: int) -> Forked | None:
        """A worker as `rung.launch.worker.main` would be one; None where the variables or the current folder are others than at the first, or
        the server has died. fds: as there; log: a file that takes what the worker prints."""
        if self._socket is None:
            self._env, self._folder = dict(env), _here()
        if self.ended or env != self._env or _here() != self._folder:
            return None
        ended_read, ended_write = os.pipe()
        answer = b""
        try:
            answer = self._asked(serves, [*fds, ended_write, log])
        finally:
            os.close(ended_write)
            # Killed, or a module could not be imported, or Ctrl-C, after which the next answer would be that of this fork.
            self.ended = not answer
            if answer in (b"", NO_PROCESS):
                os.close(ended_read)
        return None if answer in (b"", NO_PROCESS) else Forked(int(answer), ended_read)

    def _asked(self, serves: str, fds: Sequence[int]) -> bytes:
        began, first = time.monotonic(), self._socket is None
        if self._socket is None:
            self._socket = self._start()
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [serves.encode()], fds)
            answer = self._socket.recv(LONGEST)
            self.imported_in = time.monotonic() - began if first else self.imported_in
            return answer
        return b""

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    START,
                    "rung.launch.fork_server",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    *self._modules,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=self._env,
            )
        ours.settimeout(IMPORTING)
        return ours


def _here() -> str:
    """The current folder, which may be gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


class Forked:
    """What `subprocess.Popen` is of a child, for a process that another one forked."""

    def __init__(self, pid: int, ended_fd: int) -> None:
        self.pid = pid
        self._ended_fd = ended_fd  # says how it ended, and closes when it has
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, -N where signal N ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self._code is None:
            if not readable([self._ended_fd], timeout):
                raise subprocess.TimeoutExpired("a forked worker", timeout)
            said = os.read(self._ended_fd, LONGEST)
            os.close(self._ended_fd)
            self._code = int(said) if said else -signal.SIGKILL
        return self._code

    def terminate(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def main(arguments: list[str]) -> None:
    end_with_parent(int(arguments[1]))
    asked = socket.socket(fileno=int(arguments[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    first, *others = arguments[2:]
    for modules in itertools.chain([[first], others], itertools.repeat([])):
        serves, fds, *_ = socket.recv_fds(asked, LONGEST, FDS)
        if not serves:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # for a command that an import runs
        _import(modules)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no fork stays as a zombie
        sys.stdout.flush()  # what an import printed is not said again by each fork
        child = _fork()
        if child == 0:
            asked.close()
            _work(serves.decode(), *fds)
            return
        for fd in fds:
            os.close(fd)
        asked.send(NO_PROCESS if child is None else str(child).encode())


def _fork() -> int | None:
    """As `os.fork`; None where the system gives no process at the moment. A fresh one may have more luck."""
    with warnings.catch_warnings():  # of numpy's threads, which it ends before a fork and starts again
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError:
            return None


def _import(modules: Sequence[str]) -> None:
    """Older torch (2.6 is) starts a pool of compilers when Inductor is imported. A fork starts one of its own, once it needs it."""
    usual = os.environ.get(POOL)
    os.environ[POOL] = "0"
    for name in modules:
        began = time.monotonic()
        importlib.import_module(name)
        spared[name] = time.monotonic() - began
    del os.environ[POOL]
    if usual is not None:
        os.environ[POOL] = usual


def _work(serves: str, request_fd: int, reply_fd: int, lifeline_fd: int, ended_fd: int, log_fd: int) -> None:
    os.setsid()  # its own process group, so that one signal ends it with its compilers
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for output in (1, 2):
        os.dup2(log_fd, output)
    os.close(log_fd)

    def tell(status: int | None) -> None:
        if status is not None:
            os.write(ended_fd, str(os.waitstatus_to_exitcode(status)).encode())

    guarded(lifeline_fd, (request_fd, reply_fd), tell)
    os.close(ended_fd)
    # As in a process that imports it. Python does the same for its own generator.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    serve(os.fdopen(request_fd, "r"), os.fdopen(reply_fd, "w"), serves)
