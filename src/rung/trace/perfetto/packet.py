"""One packet of a Perfetto trace, taken apart: its time, its sequence, and where its parts are."""

from __future__ import annotations

from rung.trace.perfetto.protobuf import LENGTH, VARINT, Short, fields, varint

SNAPSHOT, EVENT, INTERNED, COMPRESSED, DEFAULTS, DESCRIPTOR = 6, 11, 12, 50, 59, 60
CLEARED, NEEDS_STATE = 1, 2  # bits of the flags

Spans = dict[int, tuple[int, int]]
# Its time, clock, sequence and flags, and whether packets before it were dropped.
Header = tuple[int, int | None, int, int, bool]


def scan(data: bytes, at: int, stop: int, time: int = 0) -> tuple[Header, Spans]:
    """The plain fields of a packet, and where each of its messages starts and ends.

    As in Event: the fields of every packet byte by byte, the others in general. time: where it was read already.
    """
    sequence = flags = 0
    clock = None
    dropped = False
    spans: Spans = {}
    try:
        while at < stop:
            key, byte = data[at], data[at + 1]
            if key == 0x40:
                time, at = varint(data, at + 1, stop)
            elif key == 0x5A and byte < 0x80:
                spans[EVENT] = at + 2, at + 2 + byte
                at += 2 + byte
            elif key == 0x5A and data[at + 2] < 0x80:
                byte = byte & 0x7F | data[at + 2] << 7
                spans[EVENT] = at + 3, at + 3 + byte
                at += 3 + byte
            elif key == 0x68 and byte < 0x80:
                flags |= byte
                at += 2
            elif key == 0x50 and byte < 0x80:
                sequence = byte
                at += 2
            elif key == 0xD0 and byte == 3 and data[at + 2] < 0x80:
                clock = data[at + 2]
                at += 3
            elif key == 0x18:  # trusted_uid
                at = varint(data, at + 1, stop)[1]
            elif key == 0xF8 and byte == 4:  # trusted_pid
                at = varint(data, at + 2, stop)[1]
            else:
                number, kind, value, end = next(fields(data, at, stop))
                at = end
                if kind == LENGTH:
                    spans[number] = value, end
                elif kind == VARINT:
                    if number == 10:
                        sequence = value
                    elif number == 58:
                        clock = value
                    elif number == 13:
                        flags |= value
                    elif number == 41:
                        flags |= CLEARED if value else 0
                    elif number == 42:
                        dropped = bool(value)
    except IndexError:
        raise Short("a packet is cut off") from None
    if at != stop:
        raise Short("a packet reaches behind its end")
    return (time, clock, sequence, flags, dropped), spans
