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


def varint(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """The unsigned number at `at` and the place behind it."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, at
        shift += 7
        if shift >= 70:
            raise Malformed("a number of more than ten bytes")
    raise Short("a number is cut off")


def fields(data: bytes | bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
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


def double(data: bytes | bytearray, at: int) -> float:
    return float(_DOUBLE.unpack_from(data, at)[0])


def text(data: bytes | bytearray, at: int, stop: int) -> str:
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
