"""The events of many packets at once, as columns. What a name's number stands for is not looked up here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rung.trace.perfetto import packet as parts
from rung.trace.perfetto.protobuf import FIXED64, LENGTH, VARINT
from rung.trace.perfetto.split import PADDING, Bools, Bytes, Fields, Ints, Keys, split, varints

NONE = -1  # no such field
UINT, INT, DOUBLE, TEXT, INTERNED = (
    3 << 3 | VARINT,
    4 << 3 | VARINT,
    5 << 3 | FIXED64,
    6 << 3 | LENGTH,
    17 << 3 | VARINT,
)
_IID, _IN_FULL = 1 << 3 | VARINT, 10 << 3 | LENGTH  # names of annotations
_CLEARED, _DROPPED = 41 << 3 | VARINT, 42 << 3 | VARINT
_PACKED_CATEGORIES = 3 << 3 | LENGTH


@dataclass(frozen=True)
class Annotations:
    """One row an annotation; those of one packet stand in their order, among those of others."""

    packet: Ints
    iid: Ints  # of its name, NONE where it is named in full
    name_at: Ints
    name_end: Ints
    key: Keys  # UINT, INT, DOUBLE, TEXT, INTERNED, or a type that has no column
    value: Ints
    end: Ints

    def where(self, chosen: Bools | Ints) -> Annotations:
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return Annotations(*(column[chosen] for column in vars(self).values()))


class Batch:
    """Columns of one row a packet, and its annotations.

    plain: the packet holds one event in the usual layout, and nothing that changes the state of its sequence. The
    other columns hold for plain packets only; all others are for the reader of single packets.
    """

    def __init__(self, content: bytes, starts: list[int], stops: list[int]) -> None:
        self.content, self.starts, self.stops = content, starts, stops
        data = np.frombuffer(content + bytes(PADDING), dtype=np.uint8)
        size = len(starts)
        fields, odd = split(data, np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64))
        self.time = _last(fields, 8 << 3 | VARINT, size, 0)
        self.clock = _last(fields, 58 << 3 | VARINT, size, NONE)
        self.sequence = _last(fields, 10 << 3 | VARINT, size, 0)
        flags = fields.key == 13 << 3 | VARINT
        cleared, self.needs_state = np.zeros((2, size), dtype=np.bool_)
        cleared[fields.message[flags & (fields.value & parts.CLEARED != 0)]] = True
        self.needs_state[fields.message[flags & (fields.value & parts.NEEDS_STATE != 0)]] = True
        for key in (_CLEARED, _DROPPED):
            cleared[fields.message[(fields.key == key) & (fields.value != 0)]] = True
        messages = np.bincount(fields.message[fields.key & 7 == LENGTH], minlength=size)
        event = fields.key == parts.EVENT << 3 | LENGTH
        at, end = np.full((2, size), NONE)
        at[fields.message[event]], end[fields.message[event]] = fields.value[event], fields.end[event]
        # A number above 63 bits is negative here.
        numbers = (self.time >= 0) & (self.sequence >= 0) & (self.clock >= NONE)
        self.plain = ~odd & ~cleared & numbers & (messages == 1) & (at >= 0)
        self._events(data, at, end)

    def _events(self, data: Bytes, at: Ints, end: Ints) -> None:
        size = len(at)
        rows = np.flatnonzero(self.plain)
        fields, odd = split(data, at[rows], end[rows])
        self.plain[rows[odd]] = False
        packet = rows[fields.message]
        fields = Fields(packet, fields.key, fields.value, fields.end, fields.firsts)
        self.type = _last(fields, 9 << 3 | VARINT, size, 0)
        self.track = _last(fields, 11 << 3 | VARINT, size, 0)
        self.has_track = np.zeros(size, dtype=np.bool_)
        self.has_track[packet[fields.key == 11 << 3 | VARINT]] = True
        self.name, self.name_at, self.name_end = self._name(fields, 10 << 3 | VARINT, 23 << 3 | LENGTH)
        self.category, self.category_at, self.category_end = self._name(fields, 3 << 3 | VARINT, 22 << 3 | LENGTH)
        self.plain[packet[fields.key == _PACKED_CATEGORIES]] = False
        chosen = fields.key == 4 << 3 | LENGTH
        self.annotations = self._annotations(data, packet[chosen], fields.value[chosen], fields.end[chosen])

    def _name(self, fields: Fields, iid: int, in_full: int) -> tuple[Ints, Ints, Ints]:
        """The number of a name, and where its text is if it is there in full."""
        size = len(self.plain)
        numbered, written = fields.key == iid, fields.key == in_full
        count = np.bincount(fields.message[numbered | written], minlength=size)
        self.plain[fields.message[numbered & (fields.value < 0)]] = False
        self.plain[count > 1] = False
        at, end = np.full((2, size), NONE)
        at[fields.message[written]], end[fields.message[written]] = fields.value[written], fields.end[written]
        return _last(fields, iid, size, NONE), at, end

    def _annotations(self, data: Bytes, packet: Ints, at: Ints, end: Ints) -> Annotations:
        found, usual = _usual(data, packet, at, end)
        if not usual.all():
            other = np.flatnonzero(~usual)
            others, odd = _others(data, packet[other], at[other], end[other])
            for column, values in vars(found).items():
                values[other] = getattr(others, column)
            self.plain[packet[other[odd]]] = False
        return found.where(self.plain[packet])


def _usual(data: Bytes, packet: Ints, at: Ints, stop: Ints) -> tuple[Annotations, Bools]:
    """Annotations as nearly all are, a small number for the name and a value; and which are."""
    mark, iid, key, number = data[at], data[at + 1], data[at + 2], data[at + 3].astype(np.int64)
    value, end = number.copy(), at + 4
    integer = (key == UINT) | (key == INT)
    long = np.flatnonzero(integer & (number >= 0x80))
    value[long], end[long] = varints(data, at[long] + 3)
    short = (key == TEXT) & (number < 0x80)
    value[short] = end[short]
    end[short] += number[short]
    double = key == DOUBLE
    value[double] = at[double] + 3
    end[double] = at[double] + 11
    # The key of an interned text has two bytes, the first of which is INTERNED.
    interned = (key == INTERNED) & (number == 1) & (data[at + 4] < 0x80)
    value[interned] = data[at[interned] + 4]
    end[interned] += 1
    usual = (mark == _IID) & (iid < 0x80) & (end == stop) & (integer | short | double | interned)
    none = np.full(len(at), NONE)
    return Annotations(packet, iid.astype(np.int64), none, none.copy(), key.astype(np.uint16), value, end), usual


def _others(data: Bytes, packet: Ints, at: Ints, stop: Ints) -> tuple[Annotations, Bools]:
    """Annotations of a name and one value in any layout; and which have other fields, or are damaged."""
    size = len(packet)
    fields, odd = split(data, at, stop)
    odd |= np.bincount(fields.message, minlength=size) != 2
    key = np.zeros((2, size), dtype=np.uint16)
    value, end = np.zeros((2, 2, size), dtype=np.int64)
    for place, rows in ((0, slice(fields.firsts)), (1, slice(fields.firsts, None))):
        message = fields.message[rows]
        key[place, message], value[place, message] = fields.key[rows], fields.value[rows]
        end[place, message] = fields.end[rows]
    numbered = key[0] == _IID
    behind = (key[1] == _IN_FULL) & ~numbered  # the value comes first
    odd |= ~(numbered | behind | (key[0] == _IN_FULL)) | (numbered & (value[0] < 0))
    every = np.arange(size)
    name, said = behind.astype(np.int64), (~behind).astype(np.int64)
    odd |= (key[said, every] == _IID) | (key[said, every] == _IN_FULL)
    return (
        Annotations(
            packet,
            np.where(numbered, value[0], NONE),
            value[name, every],
            end[name, every],
            key[said, every],
            value[said, every],
            end[said, every],
        ),
        odd,
    )


def _last(fields: Fields, key: int, size: int, missing: int) -> npt.NDArray[np.int64]:
    """The field's value in each message: the last one, as anywhere in protocol buffers."""
    chosen = np.flatnonzero(fields.key == key)
    found = np.full(size, missing, dtype=np.int64)
    found[fields.message[chosen]] = fields.value[chosen]
    return found
