"""The records of one process in a rocprofv3 JSON, decoded list by list into columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from rung.trace import rows as _rows
from rung.trace.rocprof.tool_json import decoded
from rung.trace.rocprof.v3_structs import Allocation, Copy, Dispatch, Handle, Kind, Process, Record, Symbol
from rung.trace.table import COUNTERS, SCHEMA
from rung.trace.unread import Unread


class Tables(NamedTuple):
    events: pl.DataFrame
    counters: pl.DataFrame


class _Names(NamedTuple):
    kernels: dict[int, str]
    kinds: list[Kind]
    messages: dict[int, str]
    devices: dict[int, int]  # agent handle → position among the GPUs

    def operation(self, record: Record, what: str) -> str:
        # The order of kinds and operations changes between releases: only the file's own lists say.
        if 0 <= record.kind < len(self.kinds):
            operations = self.kinds[record.kind].operations
            if 0 <= record.operation < len(operations):
                return operations[record.operation]
        return f"{what} {record.operation}"

    def device(self, handle: Handle | None) -> int | None:
        return self.devices.get(handle.handle) if handle else None


def kernel_name(symbol: Symbol) -> str:
    """The name the tool would print: its formatted one, but for a mangled one that it also has in clear."""
    if symbol.formatted_kernel_name and not symbol.formatted_kernel_name.startswith("_Z"):
        return symbol.formatted_kernel_name
    for name in (symbol.demangled_kernel_name, symbol.formatted_kernel_name, symbol.kernel_name):
        if name:
            return name.removesuffix(" [clone .kd]").removesuffix(" (.kd)").removesuffix(".kd")
    return symbol.truncated_kernel_name or f"kernel {symbol.kernel_id}"


def tables(process: Process, gpus: list[dict[str, Any]], path: Path, unread: Unread) -> Tables:
    """All events and counter values of one process; what is not in them is counted in `unread`."""
    names = _Names(
        {symbol.kernel_id: kernel_name(symbol) for symbol in process.kernel_symbols},
        process.strings.buffer_records,
        {message.key: message.value for message in process.strings.marker_api},
        {agent["id"]["handle"]: place for place, agent in enumerate(gpus) if _has_handle(agent)},
    )
    pid = process.metadata.get("pid")
    frames = []
    for what, raw in process.buffer_records.items():
        if rows := _LISTS.get(what) or (_calls if what.endswith("_api") else None):
            frames.append(_frame(rows(raw, what, names, path), pid, unread))
        else:
            count = len(decoded(bytes(raw), list[msgspec.Raw], path, f"a rocprofv3 list of {what}")[0])
            if count:
                unread[_UNREAD.get(what, f"{what} record")] += count
    collected = process.callback_records.counter_collection
    if not any("kernel" in frame["kind"] for frame in frames if frame.height):
        # Counters collected without a kernel trace: the dispatches are known from here alone.
        for one in collected:
            one.dispatch_data.stream_id = one.dispatch_data.stream_id or one.stream_id
            one.dispatch_data.thread_id = one.dispatch_data.thread_id or one.thread_id
        frames.append(_frame([_kernel(one.dispatch_data, names) for one in collected], pid, unread))
    return Tables(_rows.stacked(frames, SCHEMA), _counters(process, names, unread))


def _has_handle(agent: dict[str, Any]) -> bool:
    return isinstance(agent.get("id"), dict) and isinstance(agent["id"].get("handle"), int)


_COLUMNS = {
    "start": pl.Int64,
    "end": pl.Int64,
    "kind": pl.String,
    "name": pl.String,
    "tid": pl.String,
    "device": pl.Int32,
    "stream": pl.Int64,
    "correlation": pl.Int64,
    "external_id": pl.Int64,
    "bytes": pl.Int64,
}
_Row = tuple[Any, ...]


def _frame(rows: list[_Row], pid: Any, unread: Unread) -> pl.DataFrame:
    columns = zip(*rows, strict=True) if rows else ([] for _ in _COLUMNS)
    frame = pl.DataFrame(
        [
            # Not strict: an id or time beyond 64 bits becomes null, and a time that is null is counted.
            pl.Series(name, list(values), dtype=dtype, strict=False)
            for (name, dtype), values in zip(_COLUMNS.items(), columns, strict=True)
        ]
    )
    return _rows.events(frame.with_columns(pid=pl.lit("" if pid is None else str(pid))), unread)


def _row(
    record: Record,
    kind: str,
    name: str,
    device: int | None = None,
    stream: int | None = None,
    size: int | None = None,
) -> _Row:
    ids = record.correlation_id
    tid = "" if record.thread_id is None else str(record.thread_id)
    # An external id of 0 is none; an internal one is kept as written.
    external = ids.external or None
    start, end = record.start_timestamp, record.end_timestamp
    return start, end, kind, name, tid, device, stream, ids.internal, external, size


def _kernel(record: Dispatch, names: _Names) -> _Row:
    info = record.dispatch_info
    queue = record.stream_id or info.queue_id  # the stream as the program knows it, else the HSA queue
    name = names.kernels.get(info.kernel_id) or f"kernel {info.kernel_id}"
    return _row(record, "kernel", name, names.device(info.agent_id), queue.handle if queue else None)


def _kernels(raw: msgspec.Raw, what: str, names: _Names, path: Path) -> list[_Row]:
    return [_kernel(record, names) for record in decoded(bytes(raw), list[Dispatch], path, _of(what))[0]]


def _copies(raw: msgspec.Raw, what: str, names: _Names, path: Path) -> list[_Row]:
    rows = []
    for record in decoded(bytes(raw), list[Copy], path, _of(what))[0]:
        device = names.device(record.dst_agent_id)  # a copy to the host is its source's
        if device is None:
            device = names.device(record.src_agent_id)
        stream = record.stream_id.handle if record.stream_id else None
        rows.append(_row(record, "memcpy", names.operation(record, what), device, stream, record.bytes))
    return rows


def _allocations(raw: msgspec.Raw, what: str, names: _Names, path: Path) -> list[_Row]:
    rows = []
    for record in decoded(bytes(raw), list[Allocation], path, _of(what))[0]:
        stream = record.queue_id.handle if record.queue_id else None
        device = names.device(record.agent_id)
        name = names.operation(record, what)
        rows.append(_row(record, "allocation", name, device, stream, record.allocation_size))
    return rows


def _calls(raw: msgspec.Raw, what: str, names: _Names, path: Path) -> list[_Row]:
    records = decoded(bytes(raw), list[Record], path, _of(what))[0]
    return [_row(record, "runtime", names.operation(record, what)) for record in records]


def _markers(raw: msgspec.Raw, what: str, names: _Names, path: Path) -> list[_Row]:
    rows = []
    for record in decoded(bytes(raw), list[Record], path, _of(what))[0]:
        message = names.messages.get(record.correlation_id.internal or 0)
        name = names.operation(record, what) if message is None else message
        rows.append(_row(record, "annotation", name))
    return rows


def _of(what: str) -> str:
    return f"a rocprofv3 list of {what}"


_LISTS: dict[str, Callable[[msgspec.Raw, str, _Names, Path], list[_Row]]] = {
    "kernel_dispatch": _kernels,
    "memory_copy": _copies,
    "memory_allocation": _allocations,
    "scratch_memory": _allocations,
    "marker_api": _markers,
}
_UNREAD = {"pc_sample_host_trap": "PC sample", "pc_sample_stochastic": "PC sample"}


def _counters(process: Process, names: _Names, unread: Unread) -> pl.DataFrame:
    """One row a dispatch and counter; its instances (XCC, channel, …) are summed, as the tool's own CSV does."""
    known = {counter.id.handle: counter.name for counter in process.counters}
    rows: list[_Row] = []
    for one in process.callback_records.counter_collection:
        sums: dict[str, float] = {}
        for record in one.records:
            if record.value is None:
                unread["counter value that is not a number"] += 1
                continue
            name = known.get(record.counter_id.handle) or f"counter {record.counter_id.handle}"
            sums[name] = sums.get(name, 0.0) + record.value
        data = one.dispatch_data
        info = data.dispatch_info
        kernel = names.kernels.get(info.kernel_id) or f"kernel {info.kernel_id}"
        device = names.device(info.agent_id)
        rows += [(data.correlation_id.internal, device, kernel, name, value, None) for name, value in sums.items()]
    columns = zip(*rows, strict=True) if rows else ([] for _ in COUNTERS)
    return pl.DataFrame(
        [
            pl.Series(name, list(values), dtype=dtype, strict=False)
            for (name, dtype), values in zip(COUNTERS.items(), columns, strict=True)
        ]
    )
