"""Decodes the JSON of a profiling tool with the leniency it needs: bare nan, invalid UTF-8, a cut in the middle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from rung.errors import InputError

T = TypeVar("T")

_NOT_A_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:nan|inf|infinity)\s*(?=[,}\]])", re.IGNORECASE)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_CLOSING = {0x7B: b"}", 0x5B: b"]"}


def decoded(data: bytes, kind: type[T], path: Path, what: str, partial: bool = False, depth: int = 2) -> tuple[T, int]:
    """`data` as a `kind`, and the number of bytes lost at the end (0 but for a cut file read with `partial`).

    depth: how many lists and objects are open around a record, for finding the last one before a cut.
    """
    try:
        return _decode(data, kind), 0
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is not {what} ({error}): check that the tool wrote it.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)
    if data.lstrip()[:1] not in (b"{", b"["):
        raise InputError(f"{path} is not {what} (it is not JSON): check that the tool wrote it.")
    if partial:
        whole, lost = before_the_cut(data, depth)
        try:
            return _decode(whole, kind), lost
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            why = str(error)
    raise InputError(
        f"{path} is not complete JSON, it seems cut off or damaged ({why}): record it again, or read what is whole with --partial."
    )


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        repaired = _NOT_A_NUMBER.sub(rb"\1null", data.decode("utf-8", "replace").encode())
        return msgspec.json.decode(repaired, type=kind)


def before_the_cut(data: bytes, depth: int) -> tuple[bytes, int]:
    """`data` up to the last record that is whole, its open lists and objects closed; and the bytes left out."""
    stack: list[int] = []
    end, open_there = 0, b""
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in _CLOSING:
            stack.append(first)
        elif first != 0x22:  # a closing bracket
            if not stack or _CLOSING[stack.pop()] != token.group():
                break
            # Deeper brackets end a part of a record that may itself be cut.
            if len(stack) < depth or (len(stack) == depth and stack[-1] == 0x5B):
                end, open_there = token.end(), bytes(stack)
    if not end:
        return b"{}", len(data)
    return data[:end] + b"".join(_CLOSING[opened] for opened in reversed(open_there)), len(data) - end
