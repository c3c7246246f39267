"""From the events of a Perfetto trace to the event table: kinds, processes, threads, and which GPU an agent is."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import sub
from typing import Any

import polars as pl

from rung.trace.perfetto import state
from rung.trace.perfetto.event import Event
from rung.trace.perfetto.resolve import Resolved
from rung.trace.perfetto.state import Tracks
from rung.trace.table import COUNTERS, KINDS, SCHEMA
from rung.trace.unread import Unread

_INT64 = 2**63
_KIND_OF_CATEGORY = {
    "kernel_dispatch": "kernel",
    "memory_copy": "memcpy",
    "hip_api": "runtime",
    "hsa_api": "runtime",
    "rccl_api": "runtime",
    "rocdecode_api": "runtime",
    "rocjpeg_api": "runtime",
    "marker_api": "annotation",
    "memory_allocation": "allocation",
    "scratch_memory": "allocation",
    "user": "annotation",
} | {kind: kind for kind in KINDS}  # our own writer
COUNTER_CATEGORY = "counter_collection"  # an instant of it carries counters of a dispatch that is not in the trace

_ON_GPU = {"kernel", "memcpy", "memset", "gpu_annotation"}
_AT_ONCE = 20_000  # rows
_NAME = 200  # characters of a track's name that are searched
_STREAM_TRACK = re.compile(r"STREAM \[\D*(\d+)")
_QUEUE_TRACK = re.compile(r"QUEUE \[(\d+)\]")
_GPU_TRACK = re.compile(r"\b(Agent|GPU) \[(\d+)\].*\bGPU\b")


def kind_of(category: str) -> str:
    """rocprof-sys writes the categories of rocprofv3 with `rocm_` before them."""
    return _KIND_OF_CATEGORY.get(category.removeprefix("rocm_"), "other")


class Rows:
    """The rows so far, column by column, with what can only be resolved when the whole trace is known.

    All is done for many events at once: a column of most annotations is empty, and what costs time is to look.
    """

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
        self.tracks: list[int] = []
        self.agents: list[Any] = []
        self.queues: list[Any] = []
        self.counters: list[tuple[Any, Any, str, str, float, int | None]] = []
        self._kinds: dict[str, str] = {}
        self._events: list[Event] = []  # of the last rows, which have no more than a time and a track yet

    def add(self, event: Event, ts: int, dur: int | None) -> int:
        """Appends an event; `dur` is None where its end is still to come. Returns its row."""
        found = event.found
        if state.TS in found:
            ts, dur = _measured(ts, dur, found[state.TS], found.get(state.STOP), found.get(state.LENGTH_NS))
        self.columns["ts"].append(ts)
        self.columns["dur"].append(dur)
        self.tracks.append(event.track)
        self._events.append(event)
        if len(self._events) >= _AT_ONCE:
            self._take_over()
        return len(self.tracks) - 1

    def extend(self, events: Resolved, tracks: list[int], ts: list[int], dur: list[int | None]) -> int:
        """Appends many events, as `add` does one. Returns the row of the first."""
        self._take_over()
        first = len(self.tracks)
        ts, dur = _measured_column(ts, dur, events.found)
        self.columns["ts"] += ts
        self.columns["dur"] += dur
        self.tracks += tracks
        self._fill(events)
        return first

    def _take_over(self) -> None:
        """Brings the last events into the columns."""
        events, self._events = self._events, []
        if not events:
            return
        present = set().union(*(event.found for event in events))
        self._fill(
            Resolved(
                [event.category for event in events],
                [event.name for event in events],
                {slot: [event.found.get(slot) for event in events] for slot in present},
                [(row, *counter) for row, event in enumerate(events) for counter in event.counters],
            )
        )

    def _fill(self, events: Resolved) -> None:
        known = self._kinds
        known |= {category: kind_of(category) for category in {*events.categories} - known.keys()}
        kinds, names, found = [known[category] for category in events.categories], events.names, events.found
        empty = [None] * len(kinds)
        self.columns["kind"] += kinds
        self.columns["name"] += names
        for column, slot, readable in _COLUMNS:
            self.columns[column] += _each(readable, found[slot]) if slot in found else empty
        self.queues += found.get(state.QUEUE, empty)
        on_gpu = [kind in _ON_GPU for kind in kinds]
        streams = found.get(state.STREAM, empty)
        self.columns["stream"] += [_integer(stream) if on else None for stream, on in zip(streams, on_gpu, strict=True)]
        devices, of_events, dsts, srcs = (
            found.get(slot, empty) for slot in (state.DEVICE, state.AGENT, state.DST, state.SRC)
        )
        agents = [
            _agent(kind, name, device, agent, dst, src) if on or kind == "allocation" else None
            for on, kind, name, device, agent, dst, src in zip(
                on_gpu, kinds, names, devices, of_events, dsts, srcs, strict=True
            )
        ]
        self.agents += agents
        if events.counters:
            correlations, ranks = (found.get(slot, empty) for slot in (state.CORRELATION, state.RANK))
            self.counters += [
                (_integer(correlations[row]), agents[row], names[row], counter, value, _rank(ranks[row]))
                for row, counter, value in events.counters
                if kinds[row] == "kernel"
            ]

    def add_counters(self, event: Event) -> None:
        """Counters of a dispatch without a row."""
        self._take_over()
        found = event.found
        kernel = _text(found.get(state.KERNEL)) or ""
        device, of_agent, dst, src = (found.get(slot) for slot in (state.DEVICE, state.AGENT, state.DST, state.SRC))
        agent = _agent("kernel", event.name, device, of_agent, dst, src)
        correlation, rank = _integer(found.get(state.CORRELATION)), _rank(found.get(state.RANK))
        self.counters += [(correlation, agent, kernel, name, value, rank) for name, value in event.counters]

    def frames(self, tracks: Tracks, unread: Unread) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
        """The event table, the counters, and the position of each agent among the GPUs."""
        self._take_over()
        positions = self._positions(tracks)
        columns = self.columns
        devices = {agent: _device(agent, positions) for agent in set(self.agents)}
        columns["device"] = [devices[agent] for agent in self.agents]
        self._name_places(tracks)
        times = zip(columns["ts"], columns["dur"], strict=True)
        kept = [
            (type(dur) is int and type(ts) is int and 0 <= dur < _INT64 and ts >= -_INT64 and ts + dur < _INT64)
            or self._readable(row, unread)
            for row, (ts, dur) in enumerate(times)
        ]
        events = pl.DataFrame(
            {name: [v for v, keep in zip(values, kept, strict=True) if keep] for name, values in columns.items()}
            if not all(kept)
            else columns,
            schema=SCHEMA,
        )
        counters = pl.DataFrame(
            [
                (c, _device(agent, positions), kernel, name, v, rank)
                for c, agent, kernel, name, v, rank in self.counters
            ],
            schema=COUNTERS,
            orient="row",
        )
        return events, counters, positions

    def _readable(self, row: int, unread: Unread) -> bool:
        ts, dur = self.columns["ts"][row], self.columns["dur"][row]
        if dur is None:
            unread["begin without an end"] += 1
        elif (
            not isinstance(dur, int)
            or not isinstance(ts, int)
            or not -_INT64 <= ts < ts + abs(dur) + 1 <= _INT64
            or dur >= _INT64
        ):
            unread["no readable start or duration"] += 1
        elif dur < 0:
            unread.count("negative duration", ns=-dur)
        else:
            return True
        return False

    def _positions(self, tracks: Tracks) -> dict[str, int]:
        """GPU agents count from 0 in their order. `GPU-2` is said to be the third; `Agent-6` only if two came before."""
        gpus = {f"{m[1]}-{m[2]}" for t in tracks.by_uuid.values() for m in [_GPU_TRACK.search(t.name[:_NAME])] if m}
        gpus |= {agent for agent in {a for a in self.agents if isinstance(a, str)} if not agent.startswith("CPU-")}
        numbered = sorted((int(m[1]), agent) for agent in gpus for m in [re.search(r"-(\d{1,9})$", agent)] if m)
        agents = [agent for _, agent in numbered if not agent.startswith("GPU-")]
        positions = {agent: number for number, agent in numbered if agent.startswith("GPU-")}
        return positions | {agent: position for position, agent in enumerate(agents)}

    def _name_places(self, tracks: Tracks) -> None:
        """Processes, threads and streams that only the track of an event tells."""
        places: dict[int, tuple[str, str, int | None, int | None]] = {}
        for uuid in dict.fromkeys(self.tracks):
            track = tracks.by_uuid.get(uuid)
            name = track.name[:_NAME] if track else ""
            pid = tracks.process_of(uuid)
            tid = track.tid if track else None
            stream, queue = _STREAM_TRACK.search(name), _QUEUE_TRACK.search(name)
            places[uuid] = (
                "" if pid is None else str(pid),
                "" if tid is None else str(tid),
                int(stream[1]) if stream else None,
                int(queue[1]) if queue else None,
            )
        columns = self.columns
        for column, part in (("pid", 0), ("tid", 1)):
            of_track = {uuid: place[part] for uuid, place in places.items()}
            columns[column] = [
                of_track[uuid] if value is None else value
                for value, uuid in zip(columns[column], self.tracks, strict=True)
            ]
        # Without streams (before ROCm 7, or --group-by-queue) a queue is what runs in order.
        ways = {
            uuid: next((v for v in map(_integer, place[2:]) if v is not None), None) for uuid, place in places.items()
        }
        rows = zip(columns["stream"], columns["kind"], self.tracks, self.queues, strict=True)
        columns["stream"] = [
            stream
            if stream is not None or kind not in _ON_GPU
            else (_integer(queue) if ways[uuid] is None else ways[uuid])
            for stream, kind, uuid, queue in rows
        ]


def _each(readable: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    """What is readable of each value. Of a column of few different ones, each is looked at once."""
    different = set(values)
    if len(different) > len(values) // 4:
        return [None if value is None else readable(value) for value in values]
    return list(map({value: None if value is None else readable(value) for value in different}.get, values))


def _measured(ts: int, dur: int | None, start: Any, stop: Any, length: Any) -> tuple[Any, Any]:
    """When an event began and how long it was, by its slice and by its annotations.

    rocprofv3 moves the edges of kernels that overlap; the annotations keep what was measured.
    """
    if start is None:
        return ts, dur
    if stop is not None:
        return start, _difference(stop, start)
    return (ts, dur) if length is None else (start, length)


def _measured_column(ts: list[int], dur: list[int | None], found: dict[int, list[Any]]) -> tuple[list[Any], list[Any]]:
    """What `_measured` says of each event."""
    if state.TS not in found:
        return ts, dur
    empty = [None] * len(ts)
    starts, stops, lengths = (found.get(slot, empty) for slot in (state.TS, state.STOP, state.LENGTH_NS))
    if {*map(type, starts), *map(type, stops)} == {int}:  # as rocprofv3 writes it
        return starts, list(map(sub, stops, starts))
    times = [_measured(*one) for one in zip(ts, dur, starts, stops, lengths, strict=True)]
    return [at for at, _ in times], [length for _, length in times]


def _agent(kind: str, name: str, device: Any, agent: Any, dst: Any, src: Any) -> Any:
    """What names the GPU of an event: its position (ours), or an agent as in "Agent-4"."""
    if device is not None:
        return device
    if kind == "memcpy":
        name = name.upper()
        source = "DEVICE_TO_HOST" in name or "DTOH" in name
        agent = src if source else dst
        if "HOST_TO_HOST" in name:
            return None
    return f"Agent-{agent}" if isinstance(agent, int) else agent


def _device(agent: Any, positions: dict[str, int]) -> int | None:
    return positions.get(agent) if isinstance(agent, str) else _integer(agent, 2**31)


def _integer(value: Any, limit: int = _INT64) -> int | None:
    if value is None:
        return None
    return value if isinstance(value, int) and -limit <= value < limit else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _difference(stop: Any, start: Any) -> Any:
    return stop - start if isinstance(stop, int) and isinstance(start, int) else "no number"


def _rank(value: Any) -> int | None:
    return _integer(value, 2**31)


# The columns that an annotation fills as it is, and what is readable of it.
_COLUMNS: tuple[tuple[str, int, Callable[[Any], Any]], ...] = (
    ("correlation", state.CORRELATION, _integer),
    ("pid", state.PID, str),
    ("tid", state.TID, str),
    ("external_id", state.EXTERNAL, _integer),
    ("dims", state.DIMS, _text),
    ("bytes", state.BYTES, _integer),
    ("rank", state.RANK, _rank),
    ("dtypes", state.DTYPES, _text),
    ("strides", state.STRIDES, _text),
    ("concrete", state.CONCRETE, _text),
    ("sequence", state.SEQUENCE, _integer),
)
