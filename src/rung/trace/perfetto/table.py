"""From the events of a Perfetto trace to the event table: kinds, processes, threads, and which GPU an agent is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import polars as pl

from rung.trace.perfetto import slots
from rung.trace.perfetto.event import Event
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

    What annotations say is taken over for many events at once: a column of most of them is empty, and what costs time is to look.
    """

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
        self.tracks: list[int] = []
        self.agents: list[Any] = []
        self.queues: list[Any] = []
        self.counters: list[tuple[Any, Any, str, str, float, int | None]] = []
        self._append = {name: self.columns[name].append for name in ("ts", "dur", "kind", "name", "stream")}
        self._kinds: dict[str, str] = {}
        self._found: list[dict[int, Any]] = []  # annotations of the last rows

    def _kind(self, category: str) -> str:
        kind = self._kinds[category] = kind_of(category)
        return kind

    def add(self, event: Event, ts: int, dur: int | None) -> int:
        """Appends an event; `dur` is None where its end is still to come. Returns its row."""
        kind = self._kinds.get(event.category) or self._kind(event.category)
        found = event.found
        if slots.TS in found:
            # rocprofv3 moves the edges of kernels that overlap; the annotations keep what was measured.
            if slots.STOP in found:
                ts, dur = found[slots.TS], _difference(found[slots.STOP], found[slots.TS])
            elif slots.LENGTH_NS in found:
                ts, dur = found[slots.TS], found[slots.LENGTH_NS]
        stream = agent = None
        if kind in _ON_GPU:
            stream = _integer(found.get(slots.STREAM))
            agent = _agent(event, kind)
        elif kind == "allocation":
            agent = found.get(slots.DEVICE, found.get(slots.AGENT))
            agent = f"Agent-{agent}" if isinstance(agent, int) and slots.DEVICE not in found else agent
        if event.counters and kind == "kernel":
            correlation, rank = _integer(found.get(slots.CORRELATION)), _integer(found.get(slots.RANK), 2**31)
            self.counters += [(correlation, agent, event.name, name, value, rank) for name, value in event.counters]
        append = self._append
        append["ts"](ts)
        append["dur"](dur)
        append["kind"](kind)
        append["name"](event.name)
        append["stream"](stream)
        self.tracks.append(event.track)
        self.agents.append(agent)
        self._found.append(found)
        if len(self._found) >= _AT_ONCE:
            self._take_over()
        return len(self.tracks) - 1

    def _take_over(self) -> None:
        """Brings the annotations of the last rows into their columns."""
        found, self._found = self._found, []
        for column, slot, readable in _COLUMNS:
            told = [annotations.get(slot) for annotations in found]
            self.columns[column] += [None if value is None else readable(value) for value in told]
        self.queues += [annotations.get(slots.QUEUE) for annotations in found]

    def add_counters(self, event: Event) -> None:
        """Counters of a dispatch without a row."""
        found = event.found
        kernel = _text(found.get(slots.KERNEL)) or ""
        correlation, agent = _integer(found.get(slots.CORRELATION)), _agent(event, "kernel")
        rank = _integer(found.get(slots.RANK), 2**31)
        self.counters += [(correlation, agent, kernel, name, value, rank) for name, value in event.counters]

    def frames(self, tracks: Tracks, unread: Unread) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
        """The event table, the counters, and the position of each agent among the GPUs."""
        self._take_over()
        positions = self._positions(tracks)
        columns = self.columns
        columns["device"] = [_device(agent, positions) for agent in self.agents]
        self._name_places(tracks)
        kept = [self._readable(row, unread) for row in range(len(self.tracks))]
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
        pids, tids, streams = (self.columns[name] for name in ("pid", "tid", "stream"))
        for row, uuid in enumerate(self.tracks):
            place = places.get(uuid)
            if place is None:
                track = tracks.by_uuid.get(uuid)
                name = track.name[:_NAME] if track else ""
                pid = tracks.process_of(uuid)
                tid = track.tid if track else None
                stream, queue = _STREAM_TRACK.search(name), _QUEUE_TRACK.search(name)
                place = places[uuid] = (
                    "" if pid is None else str(pid),
                    "" if tid is None else str(tid),
                    int(stream[1]) if stream else None,
                    int(queue[1]) if queue else None,
                )
            if pids[row] is None:
                pids[row] = place[0]
            if tids[row] is None:
                tids[row] = place[1]
            if streams[row] is None and self.columns["kind"][row] in _ON_GPU:
                # Without streams (before ROCm 7, or --group-by-queue) a queue is what runs in order.
                ways = (place[2], place[3], self.queues[row])
                streams[row] = next((v for v in map(_integer, ways) if v is not None), None)


def _agent(event: Event, kind: str) -> Any:
    """What names the GPU of an event: its position (ours), or an agent as in "Agent-4"."""
    found = event.found
    if slots.DEVICE in found:
        return found[slots.DEVICE]
    if kind == "memcpy":
        name = event.name.upper()
        source = "DEVICE_TO_HOST" in name or "DTOH" in name
        agent = found.get(slots.SRC) if source else found.get(slots.DST)
        if "HOST_TO_HOST" in name:
            return None
    else:
        agent = found.get(slots.AGENT)
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
    ("correlation", slots.CORRELATION, _integer),
    ("pid", slots.PID, str),
    ("tid", slots.TID, str),
    ("external_id", slots.EXTERNAL, _integer),
    ("dims", slots.DIMS, _text),
    ("bytes", slots.BYTES, _integer),
    ("rank", slots.RANK, _rank),
    ("dtypes", slots.DTYPES, _text),
    ("strides", slots.STRIDES, _text),
    ("concrete", slots.CONCRETE, _text),
    ("sequence", slots.SEQUENCE, _integer),
)
