"""The packets of a Perfetto file, one after the other, also those that are deflated inside a packet."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from rung.trace.perfetto.protobuf import LENGTH, Malformed, Short, fields, varint
from rung.trace.source import BLOCK, MAX_VALUE

_PACKET = 1  # the field of a trace that holds a packet
_KEY = _PACKET << 3 | LENGTH

# The packets that a block ends: the bytes, and where each starts and ends in them.
Block = tuple[bytes, list[int], list[int]]


class Cut(Malformed):
    """The packets end before the file's last one is whole, or stop being packets."""


class TooLong(Exception):
    """A packet is longer than what is read of one."""


def inflated(data: bytes, at: int, stop: int) -> Iterator[bytes]:
    """What was deflated into one packet, block by block."""
    machine, packed = zlib.decompressobj(), data[at:stop]
    while not machine.eof:
        try:
            out = machine.decompress(packed, BLOCK)
        except zlib.error as error:
            raise Cut(f"its compressed data is damaged ({error})") from None
        packed = machine.unconsumed_tail
        if not out and not packed and not machine.eof:
            raise Cut("its compressed data is cut off")
        yield out


def packets(parts: Iterator[bytes], longest: int = MAX_VALUE) -> Iterator[Block]:
    """All packets, those that end in one of the parts together. Raises Cut behind the last whole one, and TooLong for one of
    more than `longest` bytes."""
    rest = b""
    missing = 0  # bytes known to be missing, so that one long packet is not joined again at every block
    waiting: list[bytes] = []
    for part in parts:
        if missing > len(part):
            waiting.append(part)
            missing -= len(part)
            continue
        data = b"".join((rest, *waiting, part)) if rest or waiting else part
        waiting.clear()
        at, missing = 0, 0
        starts: list[int] = []
        stops: list[int] = []
        add_start, add_stop = starts.append, stops.append
        wrong: Exception | None = None  # raised behind the packets before it
        size = len(data)
        while at < size:
            try:
                # As nearly all are: less than 16 KiB, in a field of the trace that holds packets.
                if data[at] == _KEY and (low := data[at + 1]) < 0x80:
                    start = at + 2
                    after = start + low
                elif data[at] == _KEY and (high := data[at + 2]) < 0x80:
                    start = at + 3
                    after = start + (low & 0x7F | high << 7)
                else:
                    start, after = _next(data, at)
            except (Short, IndexError):
                break
            except Malformed as error:
                wrong = Cut(f"what follows is not a packet: {error}")
                break
            if after > size:
                missing = after - size
                if after - at > longest:
                    wrong = TooLong(longest)
                break
            if start >= 0:
                add_start(start)
                add_stop(after)
            at = after
        if starts:
            yield data, starts, stops
        if wrong:
            raise wrong
        rest = data[at:]
    if rest or waiting:
        raise Cut(f"{len(rest) + sum(map(len, waiting))} bytes at its end are not a whole packet")


def _next(data: bytes, at: int) -> tuple[int, int]:
    """Where the packet at `at` starts and ends; the start is -1 for another field of the trace."""
    size_at = at + 1
    if data[at] != _KEY:
        key, size_at = varint(data, at, len(data))
        if key >> 3 == 0 or key & 7 != LENGTH:
            raise Malformed("another field")
        size, start = varint(data, size_at, len(data))
        return -1, start + size
    size, start = varint(data, size_at, len(data))
    return start, start + size


def looks_like_packets(head: bytes) -> bool:
    """Whether a file that starts with these bytes holds packets. A text that starts with a line feed does not."""
    if not head or head[0] != _KEY:
        return False
    known = 0
    try:
        start, stop = _next(head, 0)
        for number, wire, _, _ in fields(head, start, min(stop, len(head))):
            if number in _WIRE:
                if wire != _WIRE[number]:
                    return False
                known += 1
    except Short:
        return known > 0 and stop > len(head)
    except Malformed:
        return False
    return known > 0 and (stop >= len(head) or head[stop] == head[0])


# Fields of a packet that every recorder writes, with their wire types.
_WIRE = {
    3: 0,  # trusted_uid
    6: 2,  # clock_snapshot
    8: 0,  # timestamp
    10: 0,  # trusted_packet_sequence_id
    11: 2,  # track_event
    12: 2,  # interned_data
    13: 0,  # sequence_flags
    33: 2,  # trace_config
    35: 2,  # trace_stats
    36: 2,  # synchronization_marker
    41: 0,  # incremental_state_cleared
    42: 0,  # previous_packet_dropped
    50: 2,  # compressed_packets
    58: 0,  # timestamp_clock_id
    59: 2,  # trace_packet_defaults
    60: 2,  # track_descriptor
    79: 0,  # trusted_pid
    87: 0,  # first_packet_on_sequence
}
