"""What the writers of traces share: a file is written whole or not at all, gzip where its name says so."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from rung.errors import InputError


@dataclass(frozen=True)
class Note:
    """Something that we have to say about a stretch of a trace: shown on a track of its own. Times in ns."""

    name: str
    ts: int
    dur: int
    text: str = ""


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to. It takes its name when all is written; until then what was there stays. A pipe and the like are
    written to as they are: a file would take their place."""
    file = Path(os.path.realpath(path))  # of a link, and /dev/stdout is one, what it stands for
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        try:
            if path.exists() and not path.is_file():
                with path.open("wb") as pipe:
                    yield pipe
                return
            file.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)  # a stranger's link there would lead elsewhere
            with partial.open("xb") as written:
                if path.name.endswith(".gz"):
                    # Level 6 takes twice the time for a tenth less. No name and time: equal traces, equal bytes.
                    with gzip.GzipFile("", "wb", compresslevel=4, fileobj=written, mtime=0) as packed:
                        yield cast(BinaryIO, packed)
                else:
                    yield written
                written.flush()
                os.fsync(written.fileno())
            os.replace(partial, file)
        except OSError as error:
            raise InputError(
                f"{path} could not be written ({error.strerror or error}): free some space or choose another place."
            ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
