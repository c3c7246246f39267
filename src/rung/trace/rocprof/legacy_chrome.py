"""The Chrome JSON of legacy rocprof (`results.json`): all values are strings, microseconds are cut off, ns are in args."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from rung.errors import InputError
from rung.trace import rows as _rows
from rung.trace.rocprof.tool_json import decoded
from rung.trace.table import Trace
from rung.trace.unread import Unread

_WHAT = "a Chrome trace of rocprof"
# The lanes that it writes; 6 + n is GPU n.
_LANES = {0: "annotation", 1: "memcpy", 2: "runtime", 3: "runtime"}
_FIRST_GPU = 6
_PHASES = {"M": "metadata event"}
_UNLINKED = "flow without its call or its GPU event"


class _Args(msgspec.Struct, gc=False, frozen=True):
    begin: str | int | None = msgspec.field(name="BeginNs", default=None)
    end: str | int | None = msgspec.field(name="EndNs", default=None)
    pid: str | int | None = None
    tid: str | int | None = None
    stream: str | int | None = msgspec.field(name="stream-id", default=None)
    queue: str | int | None = msgspec.field(name="queue-id", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: str | int | None = None
    tid: str | int | None = None
    ts: str | int | None = None
    id: str | int | None = None
    args: _Args | None = None


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents", default_factory=list)


def sniff(head: bytes) -> bool:
    """Kineto's traces have neither the empty first event nor BeginNs."""
    start = head.lstrip()
    return start[:1] == b"{" and b'"traceEvents"' in start[:200] and (
        re.search(rb'"BeginNs"\s*:', start) is not None or re.match(rb'\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}', start) is not None
    )  # fmt: skip


def read(data: bytes, path: Path, partial: bool) -> Trace:
    file, lost = decoded(data, _File, path, _WHAT, partial, depth=2)
    if b'"traceEvents"' not in data:
        raise InputError(f"{path} is not {_WHAT} (it has no traceEvents): check that the tool wrote it.")
    unread = Unread()
    if lost:
        unread["record cut off at the end of the file"] += 1
    rows: list[tuple[Any, ...]] = []
    ends: dict[tuple[int | None, ...], list[int]] = defaultdict(list)  # lane, thread and µs → rows that start there
    flows: dict[int | None, list[tuple[int | None, ...]]] = defaultdict(list)
    for event in file.events:
        lane, thread, micro = _int(event.pid), _int(event.tid), _int(event.ts)
        if event.ph in ("s", "t"):
            flows[_int(event.id)].append((lane, thread, micro))
        elif event.ph == "X" and event.args is not None:
            ends[lane, thread, micro].append(len(rows))
            rows.append(_row(event, event.args, -1 if lane is None else lane))
        elif event.ph or event.name:  # the first event of every file is an empty one
            unread[_PHASES.get(event.ph, "event of another phase")] += 1
    correlation = _linked(flows, ends, rows, unread)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_COLUMNS)
    frame = pl.DataFrame(
        [
            pl.Series(name, list(values), dtype=dtype, strict=False)
            for (name, dtype), values in zip(_COLUMNS.items(), columns, strict=True)
        ]
    ).with_columns(correlation=pl.Series([correlation.get(place) for place in range(len(rows))], dtype=pl.Int64))
    events = _rows.events(frame, unread)
    return Trace(events=events, source=str(path), unread=dict(unread), unread_ns=dict(unread.ns), format="rocprof-json")


_COLUMNS = {
    "start": pl.Int64,
    "end": pl.Int64,
    "kind": pl.String,
    "name": pl.String,
    "pid": pl.String,
    "tid": pl.String,
    "device": pl.Int32,
    "stream": pl.Int64,
}


def _row(event: _Event, args: _Args, lane: int) -> tuple[Any, ...]:
    device = lane - _FIRST_GPU if lane >= _FIRST_GPU else None
    stream = None
    kind = _LANES.get(lane, "other")
    if device is not None:
        kind = "memcpy" if event.name.startswith("Copy") else "memset" if event.name.startswith("Fill") else "kernel"
        stream = _int(args.stream if args.stream is not None else args.queue)
    pid, tid = (str(there if there is not None else "") for there in (args.pid, args.tid))
    return _int(args.begin), _int(args.end), kind, event.name, pid, tid, device, stream


def _linked(
    flows: dict[int | None, list[tuple[int | None, ...]]],
    ends: dict[tuple[int | None, ...], list[int]],
    rows: list[tuple[Any, ...]],
    unread: Unread,
) -> dict[int, int]:
    """Row → correlation. The file has no ids but its flows': a flow names the lane, thread and µs of both ends."""
    correlation: dict[int, int] = {}
    for number, points in flows.items():
        found = [next((row for row in ends.get(point, ()) if row not in correlation), None) for point in points]
        if number is None or len(found) != 2 or None in found:
            unread[_UNLINKED] += 1
            continue
        correlation.update({row: number for row in found if row is not None})
    return correlation


def _int(value: str | int | None) -> int | None:
    try:
        return int(value) if value is not None and len(str(value)) < 20 else None
    except ValueError:
        return None
