"""Splits many messages into their fields at once: what `protobuf.fields` does, a column of messages at a time.

The first fields of all messages are read together, then their second ones, and so on. It knows the layouts that
recorders write. A message in any other layout, or a damaged one, is marked as odd, for the reader of single messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rung.trace.perfetto.protobuf import FIXED64, LENGTH

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint16]  # short, since they are searched again and again
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

PADDING = 16  # bytes that must follow the messages: a number is looked for in so many
_MOST_FIELDS = 100  # of one message; each more is a round over all messages
_NOWHERE = 1 << 62  # the end of a number that has none


@dataclass(frozen=True)
class Fields:
    """One row a field: the first fields of all messages, then their second ones, and so on."""

    message: Ints  # position of the message among those that were split
    key: Keys  # field number << 3 | wire type
    value: Ints  # of a varint its 64 bits; of others where the bytes start
    end: Ints
    firsts: int  # so many rows are first fields


def split(data: Bytes, at: Ints, stop: Ints) -> tuple[Fields, Bools]:
    """The fields of the messages from `at` to `stop`, and which messages are odd: their fields may be incomplete."""
    odd = np.zeros(len(at), dtype=np.bool_)
    message = np.flatnonzero(at < stop)
    at, stop = at[message], stop[message]
    found: list[tuple[Ints, Keys, Ints, Ints]] = []
    pairs = np.ndarray((len(data) - 1,), dtype="<u2", buffer=data, strides=(1,))  # the two bytes from each place on
    while message.size:
        pair = pairs[at]
        key, first = pair & 0xFF, pair >> 8
        wide = np.flatnonzero(key >= 0x80)
        at = at + 1
        if wide.size:
            high, first[wide] = first[wide], data[at[wide] + 1]
            key[wide] = np.where((high > 0) & (high < 0x80), key[wide] & 0x7F | high << 7, 0)
            at[wide] += 1
        wire = key & 7
        value, end = first.astype(np.int64), at + 1
        sized, fixed = wire & 5 == 0, wire & 3 == 1  # VARINT and LENGTH; FIXED64 and FIXED32
        long = np.flatnonzero((first >= 0x80) & sized)
        if long.size:
            value[long], end[long] = varints(data, at[long])
        length = np.flatnonzero(wire == LENGTH)
        if length.size:
            sizes, value[length] = value[length], end[length]
            end[length] += sizes
        if fixed.any():
            rows = np.flatnonzero(fixed)
            value[rows] = at[rows]
            end[rows] = at[rows] + np.where(wire[rows] == FIXED64, 8, 4)
        # A length that overflows gives an end before its start.
        fine = (sized | fixed) & (key >= 8) & (end <= stop) & (end > at)
        if not fine.all():
            odd[message[~fine]] = True
            message, key, value, end, stop = message[fine], key[fine], value[fine], end[fine], stop[fine]
        found.append((message, key, value, end))
        more = end < stop
        message, at, stop = (message, end, stop) if more.all() else (message[more], end[more], stop[more])
        if len(found) == _MOST_FIELDS:
            odd[message] = True
            break
    if not found:
        found.append((message, message.astype(np.uint16), message, message))
    messages, keys, values, ends = zip(*found, strict=True)
    parts = np.concatenate(messages), np.concatenate(keys), np.concatenate(values), np.concatenate(ends)
    return Fields(*parts, firsts=len(messages[0])), odd


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The numbers at these places, as int64, and where they end."""
    every = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))  # the eight bytes from each place on
    words = every[at].astype(np.uint64, copy=False)
    ends = ~words & np.uint64(0x8080_8080_8080_8080)
    last = ends & (~ends + np.uint64(1))  # the upper bit of the last byte; 0 where that is not among these eight
    words &= (last - np.uint64(1)) & np.uint64(0x7F7F_7F7F_7F7F_7F7F)
    # Brings groups of 7 bits together: pairs of bytes, then of these, then of these.
    for mask, bits in ((0x007F_007F_007F_007F, 8), (0x0000_3FFF_0000_3FFF, 16), (0x0000_0000_0FFF_FFFF, 32)):
        low = words & np.uint64(mask)
        words = (words >> np.uint64(bits)) & np.uint64(mask)
        words <<= np.uint64(bits - bits // 8)
        words |= low
    after = at + (np.frexp(last.astype(np.float64))[1] >> 3)
    long = np.flatnonzero(last == 0)
    if long.size:
        ninth, tenth = (data[at[long] + place].astype(np.uint64) for place in (8, 9))
        words[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        ten = ninth >= 0x80
        words[long] |= np.where(ten, tenth << np.uint64(63), np.uint64(0))
        after[long] = np.where(ten, np.where(tenth < 0x80, at[long] + 10, _NOWHERE), at[long] + 9)
    return words.view(np.int64), after
