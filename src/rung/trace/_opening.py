"""Opens what a reader reads: plain or gzip by content, within a limit of bytes, with a sentence for each failure."""

from __future__ import annotations

import zlib
from pathlib import Path

from rung.errors import InputError

_CHUNK = 1 << 20


def content(path: Path, max_bytes: int | None = None, partial: bool = False) -> bytes:
    """The bytes of `path`, decompressed when they are gzip; with `partial`, those before the cut."""
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            if head == b"\x1f\x8b":
                data, damage = _inflated(file, path, max_bytes)
                if damage and not (partial and data):
                    raise InputError(f"{path} is a damaged or cut-off gzip file ({damage}): copy or record it again.")
            else:
                data = file.read() if max_bytes is None else file.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError(f"There is no file {path}: check the path of the trace.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory: name the trace file in it.") from None
    except OSError as error:
        raise InputError(f"{path} could not be read ({error.strerror}): check its permissions and disk.") from None
    if max_bytes is not None and len(data) > max_bytes:
        raise _too_big(path, max_bytes)
    if not data.strip():
        raise InputError(f"{path} is empty: record the trace again.")
    return data


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of `path`, decompressed; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(size)
        return zlib.decompressobj(31).decompress(start, size) if start[:2] == b"\x1f\x8b" else start
    except (OSError, zlib.error):
        return b""


def _inflated(file: object, path: Path, max_bytes: int | None) -> tuple[bytes, str]:
    """The decompressed bytes, and what is wrong with the rest ("" when nothing is)."""
    out: list[bytes] = []
    size = 0
    inflate = zlib.decompressobj(31)
    try:
        while block := inflate.unconsumed_tail or file.read(_CHUNK):  # type: ignore[attr-defined]
            if inflate.eof:  # gzip files may be several members one after the other
                inflate = zlib.decompressobj(31)
            piece = inflate.decompress(block, _CHUNK)
            out.append(piece)
            size += len(piece)
            if max_bytes is not None and size > max_bytes:
                raise _too_big(path, max_bytes)
            if inflate.eof and inflate.unused_data:
                rest = inflate.unused_data
                if not rest.startswith(b"\x1f\x8b"):  # padding after the last member
                    return b"".join(out), ""
                file.seek(-len(rest), 1)  # type: ignore[attr-defined]
    except zlib.error as error:
        return b"".join(out), str(error)
    return b"".join(out), "" if inflate.eof else "it ends too early"


def _too_big(path: Path, max_bytes: int) -> InputError:
    return InputError(f"{path} holds more than {max_bytes:,} bytes: raise --max-bytes if you trust the file.")
