"""Reads what the tools before rocprofv3 write: rocprof's results.csv, statistics and Chrome JSON, rocprofv2's activity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from rung.errors import InputError
from rung.trace import rows as _rows
from rung.trace import source
from rung.trace.rocprof import legacy_chrome as _rocprof_chrome
from rung.trace.rocprof import tool_csv as _tool_csv
from rung.trace.rocprof import wide_counters as _wide_counters
from rung.trace.table import COUNTERS, SCHEMA, Trace
from rung.trace.unread import Unread

_RESULTS = frozenset({"index", "kernelname"})
_STATISTICS = frozenset({"name", "calls", "totaldurationns", "averagens", "percentage"})
_ACTIVITY = frozenset({"domain", "operation", "start_timestamp", "stop_timestamp"})
_RECORDED_WITHOUT = "dispatch without a time (recorded with --timestamp off)"


def sniff(head: bytes, path: Path) -> bool:
    if path.is_dir():
        return False
    there = {_tool_csv.plain(title) for title in _tool_csv.titles(head)}
    return _sort(there) is not None or _rocprof_chrome.sniff(head)


def _sort(there: set[str]) -> frozenset[str] | None:
    if there >= _STATISTICS and "minns" in there:  # rocprofv3's
        return None
    return next((needs for needs in (_RESULTS, _STATISTICS, _ACTIVITY) if there >= needs), None)


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in `path`. In results.csv a dispatch's correlation is its Index.

    Raises InputError when the file is missing, empty, cut off or something else; with `partial`, what is whole is read.
    """
    path = Path(path)
    data = source.content(path, max_bytes=max_bytes, partial=partial)
    if data.lstrip()[:1] in (b"{", b"["):
        return _rocprof_chrome.read(data, path, partial)
    table = _tool_csv.table(data, path, partial)
    sort = _sort(set(table.frame.columns))
    if sort is None:
        raise InputError(f"{path} is not a CSV that rocprof writes (its titles are others): check its first line.")
    if not table.frame.height and not partial:
        raise InputError(f"{path} has a header and no rows: nothing was recorded, or it was cut off; record it again.")
    unread = Unread(table.lost)
    counters = pl.DataFrame(schema=COUNTERS)
    events = pl.DataFrame(schema=SCHEMA)
    meta: dict[str, Any] = {}
    if sort is _RESULTS:
        events, counters = _results(table, unread)
    elif sort is _ACTIVITY:
        events = _activity(table.frame, unread)
    else:
        meta["statistics"] = {path.name: table.frame.to_dicts()}
    return Trace(
        events=events,
        source=str(path),
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="rocprofv2-csv" if sort is _ACTIVITY else "rocprof-csv",
        counters=counters,
        meta=meta,
    )


def _results(table: _tool_csv.Table, unread: Unread) -> tuple[pl.DataFrame, pl.DataFrame]:
    frame = table.frame
    gpus = _wide_counters.devices(frame)
    names = {title: table.titles[title] for title in frame.columns if _wide_counters.is_counter(title)}
    counters = _wide_counters.counters(frame, names, gpus, unread)
    if {"beginns", "endns"} <= set(frame.columns):
        events = _wide_counters.events(frame, gpus, unread)
    else:
        unread[_RECORDED_WITHOUT] += frame.height
        events = pl.DataFrame(schema=SCHEMA)
    index = dict(enumerate(frame.select(_tool_csv.integer("index"))["index"]))
    numbered = pl.col("correlation").replace_strict(index, default=None, return_dtype=pl.Int64)
    return (
        events.with_columns(numbered),
        counters.with_columns(numbered) if counters.height else pl.DataFrame(schema=COUNTERS),
    )


def _activity(frame: pl.DataFrame, unread: Unread) -> pl.DataFrame:
    """rocprofv2's file of API calls or of what ran on the GPU: the domain says which."""
    kernel = pl.col("kernel_name") if "kernel_name" in frame.columns else pl.lit("")
    operation = pl.col("operation")
    on_gpu = pl.col("domain").str.to_uppercase().str.contains("OPS|ACTIVITY|DISPATCH") | (kernel != "")
    copied = operation.str.to_lowercase().str.contains("copy")
    marked = pl.col("domain").str.to_uppercase().str.contains("ROCTX|MARKER")
    correlation = _tool_csv.integer("correlation_id") if "correlation_id" in frame.columns else pl.lit(None, pl.Int64)
    rows = frame.select(
        start=_tool_csv.integer("start_timestamp"),
        end=_tool_csv.integer("stop_timestamp"),
        kind=pl.when(marked)
        .then(pl.lit("annotation"))
        .when(on_gpu & copied & (kernel == ""))
        .then(pl.lit("memcpy"))
        .when(on_gpu)
        .then(pl.lit("kernel"))
        .otherwise(pl.lit("runtime")),
        name=pl.when(kernel != "").then(kernel).otherwise(operation),
        correlation=correlation,
        pid=pl.lit(""),
        tid=pl.lit(""),
    )
    return _rows.events(rows, unread)
