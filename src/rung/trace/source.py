"""Opens any file: plain or gzip as its content says, streamed, with one sentence for each thing that can be wrong."""

from __future__ import annotations

import contextlib
import errno
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rung.errors import InputError
from rung.files import check_regular

_zlib: Any = zlib
with contextlib.suppress(ImportError):  # twice as fast as zlib or more; not built for every platform
    from isal import isal_zlib as _zlib

_ZLIB_ERRORS = (zlib.error, getattr(_zlib, "error", zlib.error))
MAX_BYTES = 4 << 30  # unpacked, where nothing else is asked for; a file that is not packed may be as large as it is
MAX_WHOLE = 1 << 30  # of a format that cannot be read in pieces
MAX_VALUE = MAX_BYTES // 64  # bytes of one value, as a name
MAX_EVENTS = MAX_BYTES // 256  # smaller ones take more memory in the tables than in the file
BLOCK = 1 << 19  # bytes: a block and what is made of it stay in the processor's cache
_PACKED = 1 << 16  # bytes of gzip: what a block leaves of them is copied, so few
HEAD = 1 << 16  # bytes: enough to tell every format
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's name for "a gzip header, the largest window"


class Source:
    """The decompressed content of a file, in blocks.

    partial: where a gzip stream is damaged or ends early, stop there and say so in `cut` instead of raising.
    max_bytes: raise when the content is larger than this, whatever the size of the file (a zip bomb). By default it is
        `usual`, or the size of the file where that is more.
    """

    def __init__(
        self, path: str | Path, *, partial: bool = False, max_bytes: int | None = None, usual: int = MAX_BYTES
    ) -> None:
        self.path = Path(path)
        self.partial = partial
        self.max_bytes = max(usual, _size(self.path)) if max_bytes is None else max_bytes
        self.size = 0  # bytes given out so far
        self.cut = ""  # why the content ends before its end; empty where it is whole

    @property
    def max_value(self) -> int:
        """Bytes that one value may take: --max-bytes raises this limit, too."""
        return MAX_VALUE * max(self.max_bytes, MAX_BYTES) // MAX_BYTES

    @property
    def max_events(self) -> int:
        return MAX_EVENTS * max(self.max_bytes, MAX_BYTES) // MAX_BYTES

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks():
            self.size += len(block)
            if self.size > self.max_bytes:
                raise too_large(self.path, self.max_bytes)
            yield block

    def _blocks(self) -> Iterator[bytes]:
        with _opened(self.path) as (file, packed):
            if packed:
                yield from self._gunzip(file)
            else:
                while block := file.read(BLOCK):
                    yield block

    def _gunzip(self, file: BinaryIO) -> Iterator[bytes]:
        member: Any = None
        pending = b""
        while pending := pending or file.read(_PACKED):
            if member is None:
                # After a member: another one, or the zeros with which tapes are filled up.
                pending = pending.lstrip(b"\0") if self.size else pending
                if not pending:
                    continue
                if not pending.startswith(_GZIP[:1]):
                    return self._damaged("something else follows it")
                member = _zlib.decompressobj(_GZIP_WINDOW)
            try:
                # Never more than a block at a time, or a bomb would be in memory before it is noticed.
                while block := member.decompress(pending, BLOCK):
                    yield block
                    pending = member.unconsumed_tail
                    if member.eof:
                        break
            except _ZLIB_ERRORS as error:
                return self._damaged(str(error))
            pending = member.unused_data if member.eof else b""
            member = None if member.eof else member
        if member is not None:
            self._damaged("it ends before its end")

    def _damaged(self, why: str) -> None:
        if not self.partial:
            raise InputError(
                f"{self.path} is a damaged or cut-off gzip file ({why}): copy or record the trace again, "
                "or read what is whole with --partial."
            )
        self.cut = f"the gzip stream is damaged or cut off ({why})"


def too_large(path: Path, most: int, what: str = "bytes") -> InputError:
    return InputError(f"{path} holds more than {most:,} {what}: raise --max-bytes if you trust the file.")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):  # who opens it says what is wrong
        return 0


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """The file at `path`, and whether it is gzip."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            yield file, packed
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: check the path of the trace.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory: name the trace file in it.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        remedy = "check its permissions and disk" if getattr(error, "errno", 0) != errno.EINVAL else "give a file"
        raise InputError(f"{path} could not be read ({why}): {remedy}.") from None


def is_packed(path: Path) -> bool:
    """Whether a file is gzip, for readers that need the unpacked content as a file."""
    with _opened(path) as (_, packed):
        return packed


def head(path: str | Path, size: int = HEAD) -> bytes:
    """The first bytes of the decompressed content: enough to tell the format. Damage further on does not matter."""
    found = b""
    for block in Source(path, partial=True):
        found += block
        if len(found) >= size:
            break
    return found[:size]


def content(path: str | Path, *, partial: bool = False, max_bytes: int | None = None) -> bytes:
    """All of the decompressed content, for formats that cannot be read in pieces."""
    data = b"".join(Source(path, partial=partial, max_bytes=max_bytes, usual=MAX_WHOLE))
    if not data.strip():
        raise InputError(f"{path} is empty: record the trace again.")
    return data
