"""The wire format of protocol buffers: enough to read and write a trace without generated classes.

A message is a row of fields; a field is a key (number and wire type) and a value: a varint, 4 or 8 bytes,
or a length and that many bytes. Everything here is bounded by the bytes at hand: a length that points
behind them, a varint that does not end or an unknown wire type raises Malformed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

_64_BITS = 2**64 - 1
_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")


class Malformed(ValueError):
    """These bytes are no message."""


class Short(Malformed):
    """The bytes end in the middle of a value: more of them might make it whole."""


# The upper bytes of long numbers: times of one second share them, so a table is faster than adding them up.
_UPPER: dict[bytes, tuple[int, int]] = {}
_UPPER_SIZE = 6


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The unsigned number at `at` and the place behind it."""
    try:
        one = data[at]
        if one < 0x80:
            value, after = one, at + 1
        elif (two := data[at + 1]) < 0x80:
            value, after = one & 0x7F | two << 7, at + 2
        elif (three := data[at + 2]) < 0x80:
            value, after = one & 0x7F | (two & 0x7F) << 7 | three << 14, at + 3
        else:
            bits, size = _UPPER.get(data[at + 3 : at + 3 + _UPPER_SIZE]) or _upper(data, at + 3)
            value, after = one & 0x7F | (two & 0x7F) << 7 | (three & 0x7F) << 14 | bits, at + 3 + size
    except IndexError:
        raise Short("a number is cut off") from None
    if after > end:
        raise Short("a number is cut off")
    return value, after


def _upper(data: bytes, at: int) -> tuple[int, int]:
    """What the fourth and later bytes of a number add to it, and how many they are."""
    value, size = 0, 0
    while True:
        byte = data[at + size]
        value |= (byte & 0x7F) << (7 * size + 21)
        size += 1
        if byte < 0x80:
            break
        if size == 7:
            raise Malformed("a number of more than ten bytes")
    found = value & _64_BITS, size
    if size <= _UPPER_SIZE:  # a longer one is not told by so many bytes
        if len(_UPPER) > 10_000:
            _UPPER.clear()
        _UPPER[data[at : at + _UPPER_SIZE]] = found
    return found


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each field as (number, wire type, value, stop).

    For a varint `value` is the number; for the others it is where the bytes start, and `stop` where they end.
    """
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = varint(data, at - 1, end)
        wire = key & 7
        if key < 8:
            raise Malformed("field number 0")
        if wire == VARINT:
            # Inlined: a trace is mostly short numbers, and a call costs more than they do.
            if at < end and data[at] < 0x80:
                value = data[at]
                at += 1
            else:
                value, at = varint(data, at, end)
            yield key >> 3, wire, value, at
            continue
        if wire == LENGTH:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = varint(data, at, end)
        elif wire == FIXED64:
            size = 8
        elif wire == FIXED32:
            size = 4
        else:
            raise Malformed(f"wire type {wire}")
        if size > end - at:
            raise Short("a field reaches behind the end")
        yield key >> 3, wire, at, at + size
        at += size


def signed(value: int) -> int:
    """A varint as the int64 that it stands for."""
    return value - 2**64 if value >= 2**63 else value


def double(data: bytes, at: int) -> float:
    return float(_DOUBLE.unpack_from(data, at)[0])


def text(data: bytes, at: int, stop: int) -> str:
    return data[at:stop].decode("utf-8", "replace")


def put_varint(value: int) -> bytes:
    """`value` as a varint; negative numbers as the ten bytes of their two's complement."""
    value &= _64_BITS
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_number(number: int, value: int) -> bytes:
    return put_varint(number << 3) + put_varint(value)


def put_bytes(number: int, value: bytes) -> bytes:
    return put_varint(number << 3 | LENGTH) + put_varint(len(value)) + value


def put_text(number: int, value: str) -> bytes:
    return put_bytes(number, value.encode("utf-8", "replace"))


def put_double(number: int, value: float) -> bytes:
    return put_varint(number << 3 | FIXED64) + _DOUBLE.pack(value)


def put_fixed64(number: int, value: int) -> bytes:
    return put_varint(number << 3 | FIXED64) + _FIXED64.pack(value & _64_BITS)
