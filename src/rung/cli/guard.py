"""Answers a question of the user's own in a child process, with a limit on its time and its memory.

The child is a new process and no fork: polars' threads would not be in a fork, and it would wait for them for ever. The
limits begin when the child says so, after it has read the trace; the system keeps them, so native code cannot run on.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from rung.errors import InputError, RungError, UsageError
from rung.prctl import end_with_parent
from rung.report.units import data_size

_BLOCK = 1 << 16
_ERRORS: dict[int, type[RungError]] = {kind.exit_code: kind for kind in (RungError, UsageError, InputError)}


def guarded(answer: str, arguments: dict[str, Any], *, what: str, timeout: float, memory: int) -> Iterator[str]:
    """The text that a function gives for `arguments`, in pieces; it runs in a process of its own.

    answer: `module:function`; it is called as `function(limited, **arguments)`, and the limits hold inside of `with limited():`.
    arguments: what JSON can hold. what: the question's name, for a sentence.
    Raises what the function raises, and UsageError where it reaches a limit.
    """
    request = {"answer": answer, "arguments": arguments, "timeout": timeout, "memory": memory, "parent": os.getpid()}
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as noise:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        os.set_inheritable(asked.fileno(), True)
        # Not -m and no file: Python would look into the current folder first, where a stranger's polars.py may lie.
        code = f"import sys; sys.path[:] = {sys.path!r}; from rung.cli.guard import child; child({asked.fileno()})"
        # It keeps stdin and the pipes of `<(...)`: the trace may come through one.
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=noise, close_fds=False)
        assert process.stdout
        with process.stdout:
            try:
                head = process.stdout.readline()
                if head:
                    _refused(json.loads(head))
                    yield from _text(process.stdout)
            finally:
                process.kill()
                code_of_end = process.wait()
        if not head:
            noise.seek(0)
            raise _ended(code_of_end, noise.read(_BLOCK).decode(errors="replace"), what, timeout, memory)


def child(request_fd: int) -> None:
    """The child's side: answers the one request in that file. The first line of its stdout says whether text follows."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(request_fd, "rb") as file:
        request = json.loads(file.read())
    end_with_parent(request["parent"])
    module, function = request["answer"].split(":")
    answer: Callable[..., str] = getattr(importlib.import_module(module), function)
    head: dict[str, Any] = {}
    text = ""
    try:
        text = answer(_limits(request["timeout"], request["memory"]), **request["arguments"])
    except RungError as error:
        head = {"error": str(error), "exit_code": error.exit_code}
    except OSError as error:
        if error.filename is None:
            raise
        head = {"os_error": [error.errno, error.strerror, str(error.filename)]}
    except MemoryError:
        head = {"memory": True}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()


def _limits(timeout: float, memory: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
    @contextmanager
    def limited() -> Iterator[None]:
        """From here on: so many seconds, and so many bytes beside those that are taken already."""
        unlimited = resource.getrlimit(resource.RLIMIT_AS)
        with contextlib.suppress(OSError, ValueError):  # a system without /proc, or a lower limit of the user's own
            with open("/proc/self/statm") as file:
                taken = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + memory, unlimited[1]))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends the process, whatever that is doing
        signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            resource.setrlimit(resource.RLIMIT_AS, unlimited)

    return limited


def _refused(head: dict[str, Any]) -> None:
    if "error" in head:
        raise _ERRORS.get(head["exit_code"], RungError)(head["error"])
    if "os_error" in head:
        raise OSError(*head["os_error"])
    if "memory" in head:
        raise MemoryError


def _text(stream: IO[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    while block := stream.read(_BLOCK):
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def _ended(code: int, noise: str, what: str, timeout: float, memory: int) -> RungError:
    """Why a child ended without an answer."""
    if code == -signal.SIGALRM:
        return UsageError(f"{what} did not end within {timeout:g} s: ask for less, or give it longer with --timeout.")
    if "memory allocation of" in noise or code == -signal.SIGKILL:
        return UsageError(f"{what} needs more than {data_size(memory)} of memory: ask for less, or raise --memory.")
    if code < 0:
        from rung.launch.channel import signal_name

        return UsageError(
            f"{what} cannot be answered (its process ended by {signal_name(-code)}): write it with fewer terms."
        )
    last = (noise.strip().splitlines() or ["it said nothing"])[-1]
    raise RuntimeError(f"the process of {what} ended with {code}: {last}")
