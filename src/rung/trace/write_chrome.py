"""Writes a trace as Chrome JSON, which chrome://tracing and the Perfetto UI load and our reader reads back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import polars as pl

from rung.trace import counter_tracks
from rung.trace.kineto.collectives import arguments
from rung.trace.output import Note, counters_by_row, launches, whole
from rung.trace.places import ON_GPU, Key, Place, places
from rung.trace.table import MEMORY, SCHEMA, Trace

_INPUTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_CATEGORY = {
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",  # what Kineto writes, on ROCm too
    "cpu_op": "cpu_op",
    "annotation": "user_annotation",
    "gpu_annotation": "gpu_user_annotation",
    "python": "python_function",
    "allocation": "allocation",
    "other": "other",
}
_LINES = 20_000  # written at once
_OURS = "Rung"


def write(trace: Trace, path: str | Path, *, notes: Sequence[Note] = (), curves: bool = True) -> None:
    """Writes every event as a complete event with the names and ids that Kineto gives them.

    An arrow leads from each launch to each of its GPU events. curves: adds counter tracks of kernels queued, copy
    bandwidth and memory in use. notes: shown as a process of their own. Hardware counters stand in the arguments of
    their kernel. Times are microseconds with three decimals: exact to the nanosecond.
    """
    ranks = trace.events["rank"].drop_nulls().unique().to_list()
    with whole(Path(path)) as file:
        file.write(b'{"schemaVersion":1,"writer":"rung","displayTimeUnit":"ns","deviceProperties":')
        file.write(msgspec.json.encode(trace.devices))
        if len(ranks) == 1:
            info = trace.meta.get("distributedInfo")
            size = {"world_size": info["world_size"]} if isinstance(info, dict) and "world_size" in info else {}
            file.write(b',"distributedInfo":' + msgspec.json.encode({"rank": ranks[0], **size}))
        file.write(b',"traceEvents":[\n')
        lines = _lines(trace, notes, curves)
        separator = ""
        while block := list(islice(lines, _LINES)):
            file.write((separator + ",\n".join(block)).encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def _lines(trace: Trace, notes: Sequence[Note], curves: bool) -> Iterator[str]:
    where = places(trace)
    yield from _names(where)
    yield from _events(trace, where)
    yield from _memory(trace, where)
    yield from _arrows(trace, where)
    if curves:
        yield from _curves(counter_tracks.tracks(trace), where)
    for note in notes:
        args = _json({"text": note.text})
        yield (
            f'{{"ph":"X","cat":"user_annotation","name":{_json(note.name)},"pid":"{_OURS}","tid":"notes",'
            f'"ts":{_us(note.ts)},"dur":{_us(note.dur)},"args":{args}}}'
        )


def _names(where: dict[Key, Place]) -> Iterator[str]:
    seen: set[str | tuple[str, str]] = set()
    for order, place in enumerate(where.values()):
        pid, tid = _id(place.pid), _id(place.tid)
        if pid not in seen:
            seen.add(pid)
            yield f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"args":{{"name":{_json(place.process)}}}}}'
            # The host above its GPUs, rank by rank.
            index = ((place.rank or 0) * 2 + (place.device is not None)) * 10_000 + order
            yield f'{{"ph":"M","name":"process_sort_index","pid":{pid},"tid":0,"args":{{"sort_index":{index}}}}}'
        if (pid, tid) not in seen:
            seen.add((pid, tid))
            yield f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":{_json(place.thread)}}}}}'


def _events(trace: Trace, where: dict[Key, Place]) -> Iterator[str]:
    counters, _ = counters_by_row(trace)
    collectives = arguments(trace.collectives)
    grids = {(rank, correlation): grid for rank, correlation, grid in trace.grids.iter_rows()}
    names: dict[str, str] = {}
    shapes: dict[str, str] = {}
    for row, event in enumerate(trace.events.select(list(SCHEMA)).iter_rows()):
        ts, dur, kind, name, pid, tid, device, stream, correlation, external_id, dims, size, rank, *inputs, sequence = (
            event
        )
        on_gpu = kind in ON_GPU
        place = where[on_gpu, rank, pid, tid, device, stream]
        text = names.get(name)
        if text is None:
            text = names[name] = _json(name)
        args = []
        if device is not None:
            args.append(f'"device":{device}')
        if stream is not None:
            args.append(f'"stream":{stream}')
        if correlation is not None:
            args.append(f'"correlation":{correlation}')
        if external_id is not None:
            args.append(f'"External id":{external_id}')
        for key, value in zip(_INPUTS, (dims, *inputs), strict=True):
            if value is not None:
                raw = shapes.get(value)
                if raw is None:
                    raw = shapes[value] = _raw(value)
                args.append(f'"{key}":{raw}')
        if sequence is not None:
            args.append(f'"Sequence number":{sequence}')
        if size is not None:
            args.append(f'"bytes":{size}')
        if rank is not None:
            args.append(f'"{_OURS} rank":{rank}')
        if place.pid != pid or kind == "python":  # whose ids are read in a trace of ours only
            args.append(f'"{_OURS} pid":{_json(pid)}')
        if place.tid != tid:
            args.append(f'"{_OURS} tid":{_json(tid)}')
        if collectives:
            number = correlation if on_gpu else external_id
            said = None if number is None else collectives.pop((kind, rank, number), None)
            if said:
                args.append(said)
        if kind == "kernel" and (grid := grids.get((rank, correlation))):
            args.append(f'"grid":{grid}')
        if row in counters:
            args.append(f'"counters":{_json(dict(counters[row]))}')
        yield (
            f'{{"ph":"X","cat":"{_CATEGORY[kind]}","name":{text},"pid":{_id(place.pid)},"tid":{_id(place.tid)},'
            f'"ts":{_us(ts)},"dur":{_us(dur)},"args":{{{",".join(args)}}}}}'
        )


def _memory(trace: Trace, where: dict[Key, Place]) -> Iterator[str]:
    for ts, device, address, size, allocated, reserved, pid, tid, rank in trace.memory.select(list(MEMORY)).iter_rows():
        place = where.get((False, rank, pid, tid, None, None))
        shown_pid, shown_tid = (place.pid, place.tid) if place else (pid, tid)
        args = {
            "Bytes": size, "Addr": address, "Total Allocated": allocated, "Total Reserved": reserved,
            "Device Id": -1 if device is None else device,
            f"{_OURS} rank": rank, f"{_OURS} pid": pid, f"{_OURS} tid": tid,
        }  # fmt: skip
        known = _json({name: value for name, value in args.items() if value is not None})
        yield (
            f'{{"ph":"i","s":"t","cat":"cpu_instant_event","name":"[memory]","pid":{_id(shown_pid)},"tid":{_id(shown_tid)},'
            f'"ts":{_us(ts)},"args":{known}}}'
        )


def _arrows(trace: Trace, where: dict[Key, Place]) -> Iterator[str]:
    columns = ("ts", "kind", "rank", "pid", "tid", "device", "stream")
    pairs = launches(trace)
    starts = trace.events.select(columns)[pairs["launch"]].iter_rows()
    stops = trace.events.select(columns)[pairs["gpu"]].iter_rows()
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        for phase, (ts, kind, rank, pid, tid, device, stream) in (('"s"', start), ('"f","bp":"e"', stop)):
            place = where[kind in ON_GPU, rank, pid, tid, device, stream]
            yield (
                f'{{"ph":{phase},"cat":"ac2g","name":"ac2g","id":{number},'
                f'"pid":{_id(place.pid)},"tid":{_id(place.tid)},"ts":{_us(ts)}}}'
            )


def _curves(curves: pl.DataFrame, where: dict[Key, Place]) -> Iterator[str]:
    shown: dict[tuple[int | None, int | None], Place] = {
        (place.rank, place.device): place for place in where.values() if place.device is not None
    }
    for name, unit, rank, device, ts, value in curves.iter_rows():
        place = shown.get((rank, device))
        pid = _id(place.pid) if place else _json(f"GPU {device}")
        yield f'{{"ph":"C","name":"{name}","pid":{pid},"tid":0,"ts":{_us(ts)},"args":{{"{unit}":{value!r}}}}}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else f"-{_us(-ns)}"


def _id(text: str) -> str:
    """A number where it can be: viewers sort them so, and Kineto writes them so."""
    return text if text.isdecimal() and len(text) < 16 and str(int(text)) == text else _json(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _raw(text: str) -> str:
    """JSON as it is; what is none, as a text."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _json(text)
    return text
