"""What the packets of a Perfetto trace leave unsaid: interned names, default tracks, clocks and the track tree.

Each writer ("sequence") of a trace numbers its names and sets its defaults once, and starts anew when it clears
its incremental state. A sequence whose clearing packet was lost says nothing until it clears again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from rung.trace.perfetto.protobuf import LENGTH, VARINT, Malformed, fields, signed, text

BOOTTIME = 6  # the clock of a trace that names no other
_DEEPEST = 64  # parents of a track that are looked at: a file may make a chain of a million, or a ring
_FIRST_OWN_CLOCK, _LAST_OWN_CLOCK = 64, 127  # clocks that belong to one sequence
# Annotation names of rocprofv3 (all versions), rocprof-sys and our own writer, by the column that they fill.
(TS, STOP, LENGTH_NS, CORRELATION, TID, PID, AGENT, DST, SRC, STREAM, QUEUE, BYTES, DEVICE, EXTERNAL, DIMS, RANK,
 AGENT_TYPE, KERNEL, DTYPES, STRIDES, CONCRETE, SEQUENCE) = range(22)  # fmt: skip
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
    "dtypes": DTYPES,
    "strides": STRIDES,
    "concrete": CONCRETE,
    "sequence": SEQUENCE,
    "kernel": KERNEL,
}


@dataclass
class Track:
    name: str = ""
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    process: str = ""
    counter: bool = False


@dataclass
class OwnClock:
    """A clock that one sequence declared: `value` is its last reading, in units of `unit` ns."""

    value: int
    unit: int
    incremental: bool
    offset: int  # to the clock of the trace, ns


@dataclass
class Sequence:
    """What one writer has said so far."""

    valid: bool = False  # it has cleared its state, and no packet was lost since
    categories: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    annotations: dict[int, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    track: int = 0
    clock: int | None = None
    clocks: dict[int, OwnClock] = field(default_factory=dict)
    numbers: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # long numbers seen: value and bytes
    slots: dict[int, int] = field(default_factory=dict)  # what `slot` found

    def slot(self, iid: int) -> int:
        """The slot that an annotation's name fills, or -1: looked up once a name, not once a value."""
        found = self.slots.get(iid)
        if found is None:
            found = self.slots[iid] = SLOTS.get(self.annotations.get(iid, ""), -1)
        return found

    def clear(self) -> None:
        self.__init__(valid=True)  # type: ignore[misc]

    def intern(self, data: bytes, at: int, stop: int) -> None:
        tables = {1: self.categories, 2: self.names, 3: self.annotations, 29: self.strings}
        for number, wire, start, end in fields(data, at, stop):
            if wire == LENGTH and number in tables:
                iid, string = 0, ""
                for part, kind, value, last in fields(data, start, end):
                    if part == 1 and kind == VARINT:
                        iid = value
                    elif part == 2 and kind == LENGTH:
                        string = text(data, value, last)
                tables[number][iid] = string
                if number == 3:
                    self.slots.pop(iid, None)

    def defaults(self, data: bytes, at: int, stop: int) -> None:
        for number, wire, value, end in fields(data, at, stop):
            if number == 58 and wire == VARINT:
                self.clock = value
            elif number == 11 and wire == LENGTH:
                for part, kind, uuid, _ in fields(data, value, end):
                    if part == 11 and kind == VARINT:
                        self.track = uuid


class Clocks:
    """Brings every time to the clock of the trace."""

    def __init__(self) -> None:
        self.main = BOOTTIME
        self.offsets: dict[int, int] = {}  # of the machine's clocks to the main one, by the latest snapshot
        self.unknown = 0  # times of a clock that no snapshot ties to the main one: taken as they are

    def snapshot(self, data: bytes, at: int, stop: int, sequence: Sequence) -> None:
        readings: dict[int, tuple[int, int, bool]] = {}
        for number, wire, value, end in fields(data, at, stop):
            if number == 2 and wire == VARINT and value:
                self.main = value
            elif number == 1 and wire == LENGTH:
                clock = {part: v for part, kind, v, _ in fields(data, value, end) if kind == VARINT}
                readings[clock.get(1, 0)] = (signed(clock.get(2, 0)), clock.get(4, 0) or 1, bool(clock.get(3)))
        if self.main not in readings:
            return
        now = readings[self.main][0] * readings[self.main][1]
        for clock_id, (value, unit, incremental) in readings.items():
            offset = now - value * unit
            if _FIRST_OWN_CLOCK <= clock_id <= _LAST_OWN_CLOCK:
                sequence.clocks[clock_id] = OwnClock(value, unit, incremental, offset)
            else:
                self.offsets[clock_id] = offset

    def ns(self, raw: int, clock_id: int | None, sequence: Sequence) -> int:
        """The time that a packet gives as `raw`, signed. Advances an incremental clock."""
        if clock_id is None:
            clock_id = sequence.clock
        if clock_id is None or clock_id == self.main:
            return signed(raw)
        own = sequence.clocks.get(clock_id)
        if own is not None:
            if own.incremental:
                raw = own.value = own.value + raw
            else:
                raw = signed(raw)
            return raw * own.unit + own.offset
        if clock_id not in self.offsets:
            self.unknown += 1
        return signed(raw) + self.offsets.get(clock_id, 0)

    def column(self, raw: list[int], clock_id: int, sequence: Sequence) -> list[int]:
        """`ns` of many times in a row."""
        own = None if clock_id == self.main else sequence.clocks.get(clock_id)
        if own is None or not own.incremental:
            return [self.ns(at, clock_id, sequence) for at in raw]
        values = list(accumulate(raw, initial=own.value))
        own.value = values[-1]
        return [value * own.unit + own.offset for value in values[1:]]


class Tracks:
    """The tree of tracks, and the process that each belongs to. Descriptors may come after the events on them."""

    def __init__(self) -> None:
        self.by_uuid: dict[int, Track] = {}
        self._pids: set[int] | None = None  # of all tracks, once somebody asked

    def describe(self, data: bytes, at: int, stop: int) -> None:
        self._pids = None
        uuid, track = 0, Track()
        for number, wire, value, end in fields(data, at, stop):
            if wire == VARINT:
                if number == 1:
                    uuid = value
                elif number == 5:
                    track.parent = value
            elif wire == LENGTH:
                if number in (2, 10):
                    track.name = text(data, value, end)
                elif number == 8:
                    track.counter = True
                elif number in (3, 4):
                    for part, kind, number_or_start, last in fields(data, value, end):
                        if kind == VARINT and part == 1:
                            track.pid = signed(number_or_start)
                        elif kind == VARINT and part == 2 and number == 4:
                            track.tid = signed(number_or_start)
                        elif kind == LENGTH and part == 6 and number == 3:
                            track.process = text(data, number_or_start, last)
        if uuid == 0 and track == Track():
            raise Malformed("a track without a number")
        old = self.by_uuid.get(uuid)
        if old is not None and not track.name:
            track.name = old.name  # a later descriptor of the same track adds to it
        self.by_uuid[uuid] = track

    def process_of(self, uuid: int) -> int | None:
        """The process id of a track: its own, its parents', or that of the only process of the trace."""
        for _ in range(_DEEPEST):
            track = self.by_uuid.get(uuid)
            if track is None:
                break
            if track.pid is not None:
                return track.pid
            uuid = track.parent
        return self._only_process()

    def _only_process(self) -> int | None:
        if self._pids is None:
            self._pids = {track.pid for track in self.by_uuid.values() if track.pid is not None}
        return next(iter(self._pids)) if len(self._pids) == 1 else None
