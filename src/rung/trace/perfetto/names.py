"""What stands in a .pftrace but once: its names, by number, and the descriptors of its tracks."""

from __future__ import annotations

import polars as pl

from rung.trace.perfetto.event import BEGIN
from rung.trace.perfetto.protobuf import put_bytes, put_double, put_number, put_text, put_varint
from rung.trace.table import KINDS

EVENT = 11
_DESCRIPTOR, _INTERNED = 60, 12
_CLEARED, _NEEDS_STATE = 1, 2
_SEQUENCE = put_number(10, 1) + put_number(13, _NEEDS_STATE)
_ANNOTATIONS = (
    "pid", "tid", "device", "stream_ID", "rank", "corr_id", "external_id", "dims", "bytes", "begin_ns", "end_ns",
    "kernel", "text", "dtypes", "strides", "concrete", "sequence",
)  # fmt: skip
_INPUTS = ("dims", "dtypes", "strides", "concrete")
_UNIT_COUNT, _UNIT_BYTES = 2, 3


def packet(ts: int, body: bytes) -> bytes:
    """A packet of our one sequence."""
    body = b"\x40" + put_varint(ts) + _SEQUENCE + body
    return b"\x0a" + put_varint(len(body)) + body


class Names:
    """Numbers for the names of events, kinds, annotations, and for the texts that are repeated."""

    def __init__(self, events: pl.DataFrame) -> None:
        self._kinds = {kind: number for number, kind in enumerate(KINDS, 1)}
        self._names = {name: number for number, name in enumerate(_unique(events, "name"), 1)}
        self._keys = {key: number for number, key in enumerate(_ANNOTATIONS, 1)}
        texts = dict.fromkeys(text for column in ("pid", "tid", *_INPUTS) for text in _unique(events, column))
        self._texts = {text: number for number, text in enumerate(texts, 1)}
        self._begins: dict[tuple[str, str], bytes] = {}

    def packet(self) -> bytes:
        """Declares all of them; the sequence starts with it."""
        tables = ((1, self._kinds), (2, self._names), (3, self._keys), (29, self._texts))
        body = b"".join(
            put_bytes(field, put_number(1, number) + put_text(2, name))
            for field, table in tables
            for name, number in table.items()
        )
        body = put_number(10, 1) + put_number(13, _CLEARED) + put_bytes(_INTERNED, body)
        return b"\x0a" + put_varint(len(body)) + body

    def begin(self, kind: str, name: str) -> bytes:
        """The start of a slice's event: its type, category and name."""
        found = self._begins.get((kind, name))
        if found is None:
            found = put_number(3, self._kinds[kind]) + put_number(9, BEGIN) + put_number(10, self._names[name])
            self._begins[kind, name] = found
        return found

    def annotation(self, key: str, value: str | int | float) -> bytes:
        number = self._keys.get(key)
        body = put_text(10, key) if number is None else b"\x08" + put_varint(number)
        if isinstance(value, int):
            body += b"\x20" + put_varint(value)
        elif isinstance(value, float):
            body += put_double(5, value)
        elif value in self._texts:
            body += put_number(17, self._texts[value])
        else:
            body += put_text(6, value)
        return b"\x22" + put_varint(len(body)) + body


def _unique(events: pl.DataFrame, column: str) -> list[str]:
    return events[column].drop_nulls().unique(maintain_order=True).to_list()


class TrackTree:
    """Tracks by what they are called. Each call gives the track's number and the packets that declare it if it is new."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._last = 0
        self._processes: set[int] = set()

    def number(self) -> int:
        self._last += 1
        return self._last

    def group(self, name: str, pid: str = "", *, gpu: bool = False) -> tuple[int, list[bytes]]:
        """The track of a process. A GPU is no process: it is a named track that holds its streams."""
        known = self._numbers.get((name,))
        if known is not None:
            return known, []
        uuid = self._numbers[name,] = self.number()
        body = put_number(1, uuid)
        if not gpu and name != "Rung":
            body += put_bytes(3, put_number(1, self._process(pid)) + put_text(6, name))
        return uuid, [packet(0, put_bytes(_DESCRIPTOR, body + put_text(2, name)))]

    def _process(self, pid: str) -> int:
        """A process number that is free: the viewer joins processes of one number."""
        number = int(pid) if pid.isdecimal() and len(pid) < 10 else 0
        while number in self._processes or number == 0:
            number = max(number, 1_000_000_000) + 1
        self._processes.add(number)
        return number

    def track(self, parent: int, name: str, lane: int) -> tuple[int, list[bytes]]:
        """The track of a thread or stream. Lanes beside the first hold what overlaps there."""
        known = self._numbers.get((parent, name, lane))
        if known is not None:
            return known, []
        uuid = self._numbers[parent, name, lane] = self.number()
        shown = name if lane == 0 else f"{name} (overlap {lane})"
        body = put_number(1, uuid) + put_number(5, parent) + put_text(2, shown)
        return uuid, [packet(0, put_bytes(_DESCRIPTOR, body))]


def counter_track(uuid: int, parent: int, name: str, unit: str) -> bytes:
    known = {"bytes": put_number(3, _UNIT_BYTES), "kernels": put_number(3, _UNIT_COUNT)}
    described = put_bytes(8, known.get(unit, put_text(6, unit)))
    return packet(
        0, put_bytes(_DESCRIPTOR, put_number(1, uuid) + put_number(5, parent) + put_text(2, name) + described)
    )
