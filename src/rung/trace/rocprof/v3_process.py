"""One process' CSV files of rocprofv3 as events and counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from rung.errors import InputError
from rung.trace import rows as _rows
from rung.trace import source
from rung.trace.rocprof import tool_csv as _tool_csv
from rung.trace.rocprof import v3_agents as _rocprofv3_agents
from rung.trace.rocprof.v3_agents import Agents
from rung.trace.rocprof.v3_layouts import DOMAINS, END, START, Layout, layout_of
from rung.trace.table import COUNTERS, SCHEMA
from rung.trace.unread import Unread

_EMPTY = "file with a header and no rows"
_TEXT = ("agent", "pid", "tid")
_NUMBERS = (START, END, "correlation_id", "stream_id", "queue_id", "allocation_size")


class Process(NamedTuple):
    events: pl.DataFrame
    counters: pl.DataFrame
    devices: list[dict[str, Any]]
    unread: Unread
    meta: dict[str, Any]


class _File(NamedTuple):
    layout: Layout
    frame: pl.DataFrame
    path: Path


def read(files: list[Path], base: str, host: str, partial: bool, max_bytes: int | None) -> Process:
    """The events in `files`. base: how their names begin; host: where they ran, where that is known."""
    unread = Unread()
    read_files = [_file(path, partial, max_bytes, unread, alone=len(files) == 1) for path in files]
    agents = Agents(_gpus(read_files, files, max_bytes))
    _number(agents, read_files)
    pid = _pid(read_files, base or _base(files[0]))
    traced = any(file.layout.what == "kernel trace" for file in read_files)
    events, counters, stats = [], [], {}
    for file in read_files:
        what = file.layout.what
        if what == "counter collection":
            counters.append(_counters(file, agents, unread))
            # Where kernels were not traced, the dispatches are known from here alone.
            if not traced and {START, END} <= set(file.frame.columns):
                dispatch = [name for name in ("correlation_id", "dispatch_id", START) if name in file.frame.columns]
                once = file._replace(frame=file.frame.unique(dispatch, keep="first", maintain_order=True))
                events.append(_events(once, agents, pid, unread))
        elif file.layout.kind:
            events.append(_events(file, agents, pid, unread))
        elif what == "statistics":
            stats[file.path.name] = file.frame.to_dicts()
        elif what == "PC samples" and file.frame.height:
            unread["PC sample"] += file.frame.height
    meta = {"host": host, "pid": pid, "statistics": stats}
    return Process(
        _rows.stacked(events, SCHEMA),
        _rows.stacked(counters, COUNTERS),
        agents.gpus,
        unread,
        {key: value for key, value in meta.items() if value},
    )


def _file(path: Path, partial: bool, max_bytes: int | None, unread: Unread, alone: bool) -> _File:
    data = source.content(path, max_bytes=max_bytes, partial=partial)
    layout = layout_of([_tool_csv.plain(title) for title in _tool_csv.titles(data)])
    if layout is None:
        raise InputError(f"{path} is not a CSV that rocprofv3 writes (its titles are others): check its first line.")
    table = _tool_csv.table(data, path, partial, layout.titles)
    del data
    if not table.frame.height:
        if alone and not partial:
            raise InputError(
                f"{path} has a header and no rows: nothing was recorded, or it was cut off; record it again."
            )
        if not table.lost:
            unread[_EMPTY] += 1
    unread.update(table.lost)
    return _File(layout, _fixed(table.frame, layout), path)


def _fixed(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """A few builds of July 2025 wrote the address under the size's title and the other way round."""
    if layout.what != "memory allocation trace":
        return frame
    address = next((title for title in ("address", "starting_address") if title in frame.columns), None)
    if address is None:
        return frame
    swapped = pl.col("allocation_size").str.starts_with("0x") & ~pl.col(address).str.starts_with("0x")
    return frame.with_columns(allocation_size=pl.when(swapped).then(pl.col(address)).otherwise("allocation_size"))


def _base(path: Path) -> str:
    return path.name.split("_", 1)[0]


def _gpus(read_files: list[_File], files: list[Path], max_bytes: int | None) -> list[dict[str, Any]]:
    for file in read_files:
        if file.layout.what == "agent info":
            return _rocprofv3_agents.gpus(file.frame)
    # A single file was named: the agents are described beside it.
    beside = sorted(files[0].parent.glob(f"{_base(files[0])}_agent_info.csv*")) if len(files) == 1 else []
    for path in beside:
        frame = _tool_csv.table(source.content(path, max_bytes=max_bytes, partial=True), path, partial=True).frame
        if {"node_id", "agent_type"} <= set(frame.columns):
            return _rocprofv3_agents.gpus(frame)
    return []


def _number(agents: Agents, files: list[_File]) -> None:
    on_gpus: set[str] = set()
    others: set[str] = set()
    for file in files:
        columns = file.frame.columns
        if file.layout.kind == "kernel" and "agent_id" in columns:
            on_gpus |= set(file.frame["agent_id"].unique())
        elif file.layout.kind == "memcpy":
            frame = file.frame.with_columns(_copy_agent())
            on_gpus |= set(frame.filter(~_to_host(both=True))["agent"].unique())
            for column in ("source_agent_id", "destination_agent_id"):
                others |= set(frame[column].unique())
        elif file.layout.kind and "agent_id" in columns:
            others |= set(file.frame["agent_id"].unique())
    agents.number(on_gpus, others)


def _to_host(both: bool = False) -> pl.Expr:
    """Copies to the host; with `both`, those from host to host."""
    ends = "HOST_TO_HOST" if both else "_TO_HOST"
    return pl.col("direction").str.to_uppercase().str.ends_with(ends)


def _copy_agent() -> pl.Expr:
    """A copy is the destination's, or the source's when it goes to the host."""
    return pl.when(_to_host()).then("source_agent_id").otherwise("destination_agent_id").alias("agent")


def _pid(files: list[_File], base: str) -> str:
    """The process: the kernel trace does not say it, but its file's name or another file does."""
    if base.isdigit():
        return base
    seen = {pid for file in files if "process_id" in file.frame.columns for pid in file.frame["process_id"].unique()}
    return seen.pop() if len(seen) == 1 else ""


def _events(file: _File, agents: Agents, pid: str, unread: Unread) -> pl.DataFrame:
    frame, layout = file.frame, file.layout
    numbers = _tool_csv.numbered(frame, _NUMBERS)
    if numbers[START].null_count() or numbers[END].null_count():
        frame, rounded = _tool_csv.without_rounded(frame, [START, END])
        if rounded:
            unread[_rows.ROUNDED] += rounded
        numbers = _tool_csv.numbered(frame, _NUMBERS)
    frame = numbers
    if layout.kind == "memcpy":
        frame = frame.with_columns(_copy_agent())
    wanted = {"start": pl.col(START), "end": pl.col(END), "kind": _kind(layout)}
    wanted["name"] = pl.col(next(title for title in layout.name if title in frame.columns))
    for column, choice in layout.columns.items():
        found = [title for title in choice if title in frame.columns]
        if found:
            wanted[column] = pl.col(found[0]) if column in _TEXT else pl.coalesce(found)
    wanted.setdefault("pid", pl.lit(pid))
    wanted.setdefault("tid", pl.lit(""))
    if "agent" in frame.columns:
        wanted["agent"] = pl.col("agent")
    rows = frame.select(expression.alias(column) for column, expression in wanted.items())
    if "agent" in rows.columns:
        rows = rows.with_columns(device=agents.device("agent"))
    return _rows.events(rows, unread)


def _kind(layout: Layout) -> pl.Expr:
    if layout.what != "API trace":
        return pl.lit(layout.kind)
    domain = pl.col("domain").str.strip_chars().str.to_uppercase()
    kind = pl.lit("other")
    for prefix, meant in DOMAINS.items():
        kind = pl.when(domain.str.starts_with(prefix)).then(pl.lit(meant)).otherwise(kind)
    return kind


def _counters(file: _File, agents: Agents, unread: Unread) -> pl.DataFrame:
    device = agents.device("agent_id") if "agent_id" in file.frame.columns else pl.lit(None, pl.Int32)
    rows = file.frame.select(
        correlation=_tool_csv.integer("correlation_id"),
        device=device,
        kernel="kernel_name",
        counter="counter_name",
        value=pl.col("counter_value").str.strip_chars().cast(pl.Float64, strict=False),
    )
    return _rows.counters(rows, unread)
