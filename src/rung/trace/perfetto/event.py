"""One track event of a Perfetto trace: its type, names, track and the few annotations that the table has room for."""

from __future__ import annotations

from typing import Any

from rung.trace.perfetto.protobuf import FIXED64, LENGTH, VARINT, Short, double, fields, signed, text, varint
from rung.trace.perfetto.state import SLOTS, Sequence

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Event:
    """type, category, name and track as written; found: annotations by slot; counters: those that are doubles."""

    __slots__ = ("category", "counters", "found", "name", "track", "type")

    def __init__(self, data: bytes, at: int, stop: int, sequence: Sequence) -> None:
        self.type = 0
        self.category = self.name = ""
        self.track = sequence.track
        self.found: dict[int, Any] = {}
        self.counters: list[tuple[str, float]] = []
        try:
            at = self._parse(data, at, stop, sequence)
        except IndexError:
            raise Short("an event is cut off") from None
        if at != stop:
            raise Short("an event reaches behind its end")

    def _parse(self, data: bytes, at: int, stop: int, sequence: Sequence) -> int:
        """Reads the fields as recorders write them, byte by byte: a trace is a million of these and little else.

        What is written in another way goes to `_field`, which knows every way. Reading behind `stop` does no harm
        here: it ends in an IndexError or at a place that is not `stop`.
        """
        found, slots = self.found, sequence.slots
        while at < stop:
            key, byte = data[at], data[at + 1]
            if key == 0x22 and 2 < byte < 0x80:  # debug annotation
                end = at + 2 + byte
                if end > stop:
                    raise Short("an annotation is cut off")
                if data[at + 2] == 0x08 and data[at + 3] < 0x80:  # its interned name comes first
                    slot = slots.get(data[at + 3])
                    if slot is None:
                        slot = sequence.slot(data[at + 3])
                    kind = data[at + 4]
                    if slot < 0:
                        if kind != 0x29:  # neither a column of ours nor a double
                            at = end
                            continue
                    elif kind == 0x20 or kind == 0x18:  # int, uint
                        number = data[at + 5]
                        if number >= 0x80:
                            number = varint(data, at + 5, end)[0]
                            if kind == 0x20:
                                number = signed(number)
                        found[slot] = number
                        at = end
                        continue
                    elif kind == 0x32 and data[at + 5] == byte - 4:  # text
                        found[slot] = text(data, at + 6, end)
                        at = end
                        continue
                    elif kind == 0x88 and data[at + 5] == 1 and byte == 5 and data[at + 6] < 0x80:  # interned text
                        string = sequence.strings.get(data[at + 6])
                        if string is not None:
                            found[slot] = string
                        at = end
                        continue
                self._annotation(data, at + 2, end, sequence)
                at = end
            elif key == 0x48 and byte < 0x80:
                self.type = byte
                at += 2
            elif key == 0x50 and byte < 0x80:
                self.name = sequence.names.get(byte, "")
                at += 2
            elif key == 0x50 and data[at + 2] < 0x80:
                self.name = sequence.names.get(byte & 0x7F | data[at + 2] << 7, "")
                at += 3
            elif key == 0x18 and byte < 0x80:
                self.category = self.category or sequence.categories.get(byte, "")
                at += 2
            elif key == 0x58:
                # Numbers of tracks are hashes: ten bytes of few different values.
                known = sequence.numbers.get(data[at + 1 : at + 11]) if at + 11 <= stop else None
                if known is None:
                    known = varint(data, at + 1, stop)
                    known = known[0], known[1] - at
                    if at + 11 <= stop:
                        if len(sequence.numbers) > 10_000:
                            sequence.numbers.clear()
                        sequence.numbers[data[at + 1 : at + 11]] = known
                self.track = known[0]
                at += known[1]
            elif key == 0xF9 and byte == 2:  # flow id: correlations say the same
                at += 10
            else:
                number, wire, value, end = next(fields(data, at, stop))
                self._field(data, number, wire, value, end, sequence)
                at = end
        return at

    def _field(self, data: bytes, number: int, wire: int, value: int, end: int, sequence: Sequence) -> None:
        if wire == LENGTH:
            if number == 4:
                self._annotation(data, value, end, sequence)
            elif number == 23:
                self.name = text(data, value, end)
            elif number == 22:
                self.category = self.category or text(data, value, end)
            elif number == 3 and value < end:  # packed
                self.category = self.category or sequence.categories.get(varint(data, value, end)[0], "")
        elif wire == VARINT:
            if number == 11:
                self.track = value
            elif number == 9:
                self.type = value
            elif number == 10:
                self.name = sequence.names.get(value, "")
            elif number == 3:
                self.category = self.category or sequence.categories.get(value, "")

    def _annotation(self, data: bytes, at: int, stop: int, sequence: Sequence) -> None:
        name = ""
        value: Any = None
        for number, wire, start, end in fields(data, at, stop):
            if wire == VARINT:
                if number == 1:
                    name = sequence.annotations.get(start, "")
                elif number == 3:
                    value = start
                elif number == 4:
                    value = signed(start)
                elif number == 17:
                    value = sequence.strings.get(start)
            elif wire == LENGTH:
                if number == 10:
                    name = text(data, start, end)
                elif number == 6:
                    value = text(data, start, end)
            elif wire == FIXED64 and number == 5:
                value = double(data, start)
        if isinstance(value, float):
            self.counters.append((name, value))
        elif name in SLOTS and value is not None:
            self.found[SLOTS[name]] = value
