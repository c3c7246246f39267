"""Works on the files of a folder in several processes: each is read by one thread, and a run has a file for every rank."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rung.errors import InputError
from rung.hardware.limits import usable_cores
from rung.prctl import end_with_parent
from rung.trace.table import Trace

MOST = 16  # processes: a disk feeds no more of them
# Seconds that a file takes, that a byte of it takes, and from how many seconds on processes are worth their start.
_A_FILE, _A_BYTE, WORTHWHILE = 4e-3, 1e-8, 1.0


def processes_for(files: Sequence[Path]) -> int:
    """In how many processes to read these; 1 is this one."""
    seconds = len(files) * _A_FILE + sum(file.stat().st_size for file in files) * _A_BYTE
    return min(usable_cores(), MOST, len(files)) if seconds > WORTHWHILE else 1


def read_all(reader: str, files: Sequence[Path], processes: int, how: dict[str, Any]) -> Iterator[Trace | None]:
    """The trace in each file, in their order, None where there is none; it ends with the first that cannot be read.

    reader: `module:function`, called as `function(file, **how)` in one of the processes.
    """
    for answer in answers(reader, files, processes, how):
        if isinstance(answer, BaseException):
            raise answer
        assert answer is None or isinstance(answer, Trace)
        yield answer


def answers(function: str, files: Sequence[Path], processes: int, how: dict[str, Any]) -> Iterator[Any]:
    """What a function gives for each file, in their order; the exception where it raised one. A process that died over a file, as for want of
    memory, is an InputError for this one, and another goes on after it.

    function: `module:function`, called as `function(file, **how)` in one of the processes.
    """
    # Of n processes each answers for every n-th file, and is known by the number of its first one.
    started = {number: _start(function, files[number::processes], how) for number in range(processes)}
    try:
        for number, file in enumerate(files):
            answer = _next(started[number % processes], file)
            if isinstance(answer, _Died):
                _end(started[number % processes])
                started[number % processes] = _start(function, files[number + processes :: processes], how)
            yield answer
    finally:
        for process in started.values():
            _end(process)


class _Died(InputError):
    """The process did not answer for this file."""


def _start(function: str, files: Sequence[Path], how: dict[str, Any]) -> subprocess.Popen[bytes]:
    # Not -m: Python would look into the current folder first, where a stranger's polars.py may lie.
    code = f"import sys; sys.path[:] = {sys.path!r}; from rung.trace.parallel import child; child()"
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin:
        pickle.dump((os.getpid(), function, files, how), process.stdin)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def _next(process: subprocess.Popen[bytes], file: Path) -> Any:
    assert process.stdout
    try:
        return pickle.load(process.stdout)  # of our own process
    except (EOFError, pickle.UnpicklingError):
        code = process.wait()
        return _Died(f"{file} could not be read: its reader ended with {code}; is there enough memory?")


def child() -> None:
    """The other side: answers for the files that stdin names, one after the other."""
    import importlib

    answered = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else gets between them
    parent, name, files, how = pickle.load(sys.stdin.buffer)
    end_with_parent(parent)
    module, function = name.split(":")
    answer_for: Callable[..., Any] = getattr(importlib.import_module(module), function)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        for file in files:
            try:
                answer = answer_for(file, **how)
            except (InputError, OSError, MemoryError) as error:
                answer = error
            pickle.dump(answer, answered, protocol=5)
            answered.flush()
