"""Reads the files of a folder in several processes: each is read by one thread, and a run has a file for every rank."""

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
    """What a function gives for each file, in their order.

    reader: `module:function`, called as `function(file, **how)` in one of the processes.
    """
    # Not -m: Python would look into the current folder first, where a stranger's polars.py may lie.
    code = f"import sys; sys.path[:] = {sys.path!r}; from rung.trace.parallel import child; child()"
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        for _ in range(processes)
    ]
    try:
        for number, process in enumerate(started):
            assert process.stdin
            with process.stdin:
                pickle.dump((os.getpid(), reader, files[number::processes], how), process.stdin)
        for number, file in enumerate(files):
            yield _next(started[number % processes], file)
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()


def _next(process: subprocess.Popen[bytes], file: Path) -> Trace | None:
    assert process.stdout
    try:
        answer = pickle.load(process.stdout)  # of our own process, which stops at its first error
    except (EOFError, pickle.UnpicklingError):
        code = process.wait()
        raise InputError(f"{file} could not be read: its reader ended with {code}; is there enough memory?") from None
    if isinstance(answer, BaseException):
        raise answer
    assert answer is None or isinstance(answer, Trace)
    return answer


def child() -> None:
    """The other side: reads what stdin names, one after the other, until one cannot be read."""
    import importlib

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else gets between them
    parent, name, files, how = pickle.load(sys.stdin.buffer)
    end_with_parent(parent)
    module, function = name.split(":")
    read: Callable[..., Trace | None] = getattr(importlib.import_module(module), function)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        for file in files:
            try:
                answer: Trace | BaseException | None = read(file, **how)
            except (InputError, OSError, MemoryError) as error:
                answer = error
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
            if isinstance(answer, BaseException):
                break
