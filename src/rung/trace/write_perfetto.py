"""Writes a trace as Perfetto protobuf (.pftrace): for ui.perfetto.dev, its SQL, and our own reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl

from rung.trace import counter_tracks
from rung.trace.output import Note, counters_by_row, launches, whole
from rung.trace.perfetto.event import BEGIN, COUNTER, END, INSTANT
from rung.trace.perfetto.names import EVENT, Names, TrackTree, counter_track, packet
from rung.trace.perfetto.protobuf import put_bytes, put_double, put_fixed64, put_number, put_text
from rung.trace.perfetto.table import COUNTER_CATEGORY
from rung.trace.places import ON_GPU, nested, places
from rung.trace.table import SCHEMA, Trace

_PACKETS = 20_000  # written at once
_TRACK, _CATEGORY, _FLOW = 11, 3, 47
_END_EVENT = put_number(9, END)


def write(trace: Trace, path: str | Path, *, notes: Sequence[Note] = (), curves: bool = True) -> None:
    """Writes every event as a slice on the track of its thread or stream, with what else is known as annotations.

    Slices that overlap without nesting get tracks of their own beside. A flow leads from each launch to its GPU
    events. curves: adds counter tracks of kernels queued, copy bandwidth and memory in use. notes: shown on a track
    of their own. Hardware counters are annotations of their kernel, as rocprofv3 writes them.
    """
    with whole(Path(path)) as file:
        stream = _packets(trace, notes, curves)
        while block := list(islice(stream, _PACKETS)):
            file.write(b"".join(block))


def _packets(trace: Trace, notes: Sequence[Note], curves: bool) -> Iterator[bytes]:
    counters, orphans = counters_by_row(trace)
    names = Names(trace.events)
    tree = TrackTree()
    # All names first, once: a packet in the middle of the file can then be read without those before it.
    yield names.packet()
    yield from _slices(trace, names, tree, counters)
    first = int(trace.events["ts"][0]) if trace.events.height else 0  # any other time would stretch what a viewer shows
    for correlation, device, kernel, name, value, rank in orphans.iter_rows():
        found = {"corr_id": correlation, "device": device, "kernel": kernel, "rank": rank}
        body = put_number(9, INSTANT) + put_text(22, COUNTER_CATEGORY) + put_text(23, name)
        body += b"".join(names.annotation(key, v) for key, v in found.items() if v is not None)
        yield packet(first, put_bytes(EVENT, body + names.annotation(name, value)))
    if curves:
        yield from _curves(counter_tracks.tracks(trace), tree)
    if notes:
        root, new = tree.group("Rung")
        uuid, more = tree.track(root, "notes", 0)
        yield from (*new, *more)
        ends = np.array([note.ts + note.dur for note in notes], dtype=np.int64)
        starts = np.array([note.ts for note in notes], dtype=np.int64)
        for ts, row, lane, _ in nested(starts, ends, np.zeros_like(starts)):
            uuid, more = tree.track(root, "notes", lane)
            yield from more
            body = put_number(_TRACK, uuid)
            if row < 0:
                yield packet(ts, put_bytes(EVENT, _END_EVENT + body))
                continue
            body += put_number(9, BEGIN) + put_text(22, "annotation") + put_text(23, notes[row].name)
            yield packet(ts, put_bytes(EVENT, body + names.annotation("text", notes[row].text)))


def _slices(
    trace: Trace, names: Names, tree: TrackTree, counters: dict[int, list[tuple[str, float]]]
) -> Iterator[bytes]:
    where = places(trace)
    rows = trace.events.select(list(SCHEMA)).rows()
    flows = _flows(trace)
    # One number a shown thread, and what every event there says the same way.
    threads: dict[tuple[str, str], int] = {}
    of_key: dict[tuple, tuple[int, bytes]] = {}  # type: ignore[type-arg]
    parents: list[tuple[int, str]] = []
    group = np.empty(len(rows), dtype=np.int64)
    for row, (_, _, kind, _, pid, tid, device, stream, _, _, _, _, rank, *_) in enumerate(rows):
        key = (kind in ON_GPU, rank, pid, tid, device, stream)
        known = of_key.get(key)
        if known is None:
            place = where[key]
            thread = threads.setdefault((place.process, place.thread), len(threads))
            if thread == len(parents):
                uuid, new = tree.group(place.process, place.pid, gpu=place.device is not None)
                yield from new
                parents.append((uuid, place.thread))
            said = {"pid": pid, "tid": tid, "device": device, "stream_ID": stream, "rank": rank}
            fixed = b"".join(names.annotation(name, v) for name, v in said.items() if v is not None)
            known = of_key[key] = (thread, fixed)
        group[row] = known[0]
    starts = trace.events["ts"].to_numpy()
    ends = starts + trace.events["dur"].to_numpy()
    tracks: dict[tuple[int, int], bytes] = {}
    thread = -1
    for ts, row, lane, shown in nested(starts, ends, group):
        if row >= 0:
            thread = int(group[row])
        track = tracks.get((thread, lane))
        if track is None:
            uuid, new = tree.track(*parents[thread], lane)
            yield from new
            track = tracks[thread, lane] = put_number(_TRACK, uuid)
        if row < 0:
            yield packet(ts, put_bytes(EVENT, _END_EVENT + track))
            continue
        start, dur, kind, name, pid, tid, device, stream, correlation, external_id, dims, size, rank, *inputs = rows[
            row
        ]
        body = names.begin(kind, name) + track + of_key[kind in ON_GPU, rank, pid, tid, device, stream][1]
        if correlation is not None:
            body += names.annotation("corr_id", correlation)
        if external_id is not None:
            body += names.annotation("external_id", external_id)
        if dims is not None:
            body += names.annotation("dims", dims)
        if size is not None:
            body += names.annotation("bytes", size)
        for column, text in zip(("dtypes", "strides", "concrete", "sequence"), inputs, strict=True):
            if text is not None:
                body += names.annotation(column, text)
        if shown != start + dur:
            body += names.annotation("begin_ns", start) + names.annotation("end_ns", start + dur)
        for counter, value in counters.get(row, ()):
            body += names.annotation(counter, value)
        flow = flows.get(row)
        if flow is not None:
            body += put_fixed64(_FLOW, flow)
        yield packet(ts, put_bytes(EVENT, body))


def _flows(trace: Trace) -> dict[int, int]:
    """The flow of each linked row: that of its launch. 0 is no flow."""
    pairs = launches(trace)
    flows = {launch: launch + 1 for launch in pairs["launch"].to_list()}
    return flows | {gpu: launch + 1 for launch, gpu in pairs.iter_rows()}


def _curves(curves: pl.DataFrame, tree: TrackTree) -> Iterator[bytes]:
    ranks = curves["rank"].n_unique() > 1
    for (name, unit, rank, device), part in curves.group_by("name", "unit", "rank", "device", maintain_order=True):
        process = f"GPU {device}" + (f" (rank {rank})" if ranks else "")
        parent, new = tree.group(process, gpu=True)
        yield from new
        uuid = tree.number()
        yield counter_track(uuid, parent, f"{name} (GPU {device})", str(unit))
        head = put_number(9, COUNTER) + put_number(_TRACK, uuid)
        for ts, value in part.select("ts", "value").iter_rows():
            number = put_number(30, int(value)) if value.is_integer() else put_double(44, value)
            yield packet(ts, put_bytes(EVENT, head + number))
