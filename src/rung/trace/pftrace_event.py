"""One track event of a Perfetto trace: its type, names, track and the few annotations that the table has room for."""

from __future__ import annotations

from typing import Any

from rung.trace.pftrace_state import Sequence
from rung.trace.protobuf import FIXED64, LENGTH, VARINT, double, fields, signed, text, varint

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4

# Annotation names of rocprofv3 (all versions), rocprof-sys and our own writer, by the column that they fill.
(TS, STOP, LENGTH_NS, CORRELATION, TID, PID, AGENT, DST, SRC, STREAM, QUEUE, BYTES, DEVICE, EXTERNAL, DIMS, RANK,
 AGENT_TYPE, KERNEL) = range(18)  # fmt: skip
SLOTS = {
    "begin_ns": TS,
    "end_ns": STOP,
    "delta_ns": LENGTH_NS,
    "corr_id": CORRELATION,
    "correlation_id": CORRELATION,
    "tid": TID,
    "pid": PID,
    "agent": AGENT,
    "agent_type": AGENT_TYPE,
    "dst_agent": DST,
    "src_agent": SRC,
    "stream_ID": STREAM,
    "stream_id": STREAM,
    "queue": QUEUE,
    "copy_bytes": BYTES,
    "allocation_size": BYTES,
    "bytes": BYTES,
    "device": DEVICE,
    "external_id": EXTERNAL,
    "dims": DIMS,
    "rank": RANK,
    "kernel": KERNEL,
}


class Event:
    """type, category, name and track as written; found: annotations by slot; counters: those that are doubles."""

    __slots__ = ("category", "counters", "found", "name", "track", "type")

    def __init__(self, data: bytes, at: int, stop: int, sequence: Sequence) -> None:
        self.type = 0
        self.category = self.name = ""
        self.track = sequence.track
        self.found: dict[int, Any] = {}
        self.counters: list[tuple[str, float]] = []
        for number, wire, value, end in fields(data, at, stop):
            if number == 4:
                if wire == LENGTH:
                    self._annotation(data, value, end, sequence)
            elif wire == VARINT:
                if number == 11:
                    self.track = value
                elif number == 9:
                    self.type = value
                elif number == 10:
                    self.name = sequence.names.get(value, "")
                elif number == 3:
                    self.category = self.category or sequence.categories.get(value, "")
            elif wire == LENGTH:
                if number == 23:
                    self.name = text(data, value, end)
                elif number == 22:
                    self.category = self.category or text(data, value, end)
                elif number == 3 and value < end:  # packed
                    self.category = sequence.categories.get(varint(data, value, end)[0], "")

    def _annotation(self, data: bytes, at: int, stop: int, sequence: Sequence) -> None:
        # Recorders write the interned name first, then the value. Most names are none of ours: skip them early.
        if stop - at > 2 and data[at] == 0x08 and data[at + 1] < 0x80:
            iid = data[at + 1]
            slot = sequence.slots.get(iid)
            if slot is None:
                slot = sequence.slots[iid] = SLOTS.get(sequence.annotations.get(iid, ""), -1)
            key = data[at + 2]
            if slot < 0 and key != 0x29:
                return
            if key == 0x18 or key == 0x20:
                number = varint(data, at + 3, stop)[0]
                self.found[slot] = signed(number) if key == 0x20 else number
                return
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
