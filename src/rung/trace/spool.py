"""Traces that come through a pipe, as in `rung analyze <(zcat trace.json.gz)`: kept in a temporary file while they are read."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rung.errors import InputError
from rung.runs import temporary_folder
from rung.trace.source import MAX_BYTES, too_large

WAIT = 30.0  # seconds without a byte
_BLOCK = 1 << 20


@contextmanager
def as_file(path: Path, max_bytes: int | None = None) -> Iterator[Path]:
    """The path itself, but for a pipe that of a temporary file with what came through it.

    Raises InputError where nothing comes for so long as WAIT, or more than `max_bytes`.
    """
    try:
        is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):  # the reader says it
        is_pipe = False
    if not is_pipe:
        yield path
        return
    with temporary_folder("rung-") as folder:
        kept = Path(folder) / (path.name or "trace")
        _copy(path, kept, MAX_BYTES if max_bytes is None else max_bytes)
        try:
            yield kept
        except InputError as error:
            error.args = (str(error).replace(str(kept), str(path)),)
            raise


def _copy(path: Path, kept: Path, most: int) -> None:
    try:
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else it waits for a writer, which may never come
        try:
            with kept.open("wb") as file:
                size = 0
                for block in _blocks(pipe, path):
                    size += len(block)
                    if size > most:
                        raise too_large(path, most)
                    file.write(block)
        finally:
            os.close(pipe)
    except OSError as error:
        raise InputError(f"{path} could not be read or kept ({error.strerror}): give a file.") from None


def _blocks(pipe: int, path: Path) -> Iterator[bytes]:
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    until = time.monotonic() + WAIT
    while True:
        if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            raise InputError(
                f"nothing came through the pipe {path} for {WAIT:g} s: start what writes it, or give a file."
            )
        try:
            block = os.read(pipe, _BLOCK)
        except BlockingIOError:
            continue
        if not block:
            return
        yield block
        until = time.monotonic() + WAIT
