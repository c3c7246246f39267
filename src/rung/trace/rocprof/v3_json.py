"""Reads what `rocprofv3 --output-format json` writes: `*_results.json`, one object a process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from rung.errors import InputError
from rung.trace import rows as _rows
from rung.trace import source
from rung.trace.redact import redacted
from rung.trace.rocprof import v3_records as _rocprofv3_records
from rung.trace.rocprof.tool_json import decoded
from rung.trace.rocprof.v3_structs import Process
from rung.trace.table import COUNTERS, SCHEMA, Trace
from rung.trace.unread import Unread

_MARK = b'"rocprofiler-sdk-tool"'
_WHAT = "a rocprofv3 results file"
_RANK = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)
_GPU = 2
_LARGE = ("caches", "io_links")  # hundreds of entries an agent, of no use to a reader of traces


class _File(msgspec.Struct):
    # Newer files hold a list with one element a process; single ones have been seen bare.
    processes: list[Process] | Process = msgspec.field(name="rocprofiler-sdk-tool", default_factory=list)


def sniff(head: bytes, path: Path) -> bool:
    return _MARK in head[:4096]


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in `path`, plain or gzip. Times are on the boot clock; correlations are per process.

    Raises InputError when the file is missing, empty, cut off or something else; with `partial`, what is whole
    before a cut is read.
    """
    path = Path(path)
    data = source.content(path, max_bytes=max_bytes, partial=partial)
    file, lost = decoded(data, _File, path, _WHAT, partial, depth=5)
    if _MARK not in data:
        raise InputError(f"{path} is not {_WHAT} (it has no rocprofiler-sdk-tool): check that the tool wrote it.")
    processes = file.processes if isinstance(file.processes, list) else [file.processes]
    del data, file
    unread = Unread()
    if lost:
        unread["record cut off at the end of the file"] += 1
    events: list[pl.DataFrame] = []
    counters: list[pl.DataFrame] = []
    devices: list[dict[str, Any]] = []
    for process in processes:
        gpus = [agent for agent in process.agents if agent.get("type") == _GPU]
        table = _rocprofv3_records.tables(process, gpus, path, unread)
        events.append(table.events)
        counters.append(table.counters)
        devices = devices or [{key: agent[key] for key in agent if key not in _LARGE} for agent in gpus]
    meta = _meta(processes)
    if lost:
        meta["partial"] = {"bytes_lost": lost}
    made, counted = _rows.stacked(events, SCHEMA), _rows.stacked(counters, COUNTERS)
    if rank := _RANK.search(path.name):
        made, counted = (table.with_columns(rank=pl.lit(int(rank[1]), pl.Int32)) for table in (made, counted))
    return Trace(
        events=made,
        devices=devices,
        source=str(path),
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="rocprofv3-json",
        counters=counted,
        meta=meta,
    )


def _meta(processes: list[Process]) -> dict[str, Any]:
    """Who ran what, when and where; one process' facts at the top, several under "processes"."""
    facts = []
    for process in processes:
        known = process.metadata
        node = known.get("node") if isinstance(known.get("node"), dict) else {}
        fact = {
            "host": (node or {}).get("hostname"),
            "pid": known.get("pid"),
            "command": redacted(known.get("command")),
            "start_ns": known.get("init_time"),
            "end_ns": known.get("fini_time"),
        }
        facts.append({key: value for key, value in fact.items() if value is not None})
    return facts[0] if len(facts) == 1 else {"processes": facts}
