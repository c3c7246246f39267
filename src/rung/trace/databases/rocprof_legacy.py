"""Reads the `results.db` that the first rocprof leaves: one table a domain, made by its `tblextr.py`.

Columns changed over the years (`proc-id` became `pid`, `stream-id` and `Data` were added): they are looked up by name.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from rung.trace.databases.columns import Database, check_tables, text
from rung.trace.databases.sqlite import mentions, open_database
from rung.trace.rows import assemble, counted
from rung.trace.table import COUNTERS, Trace
from rung.trace.unread import Unread

_TABLES = ("KERN", "OPS", "COPY", "HIP", "HSA", "rocTX")
# What the KERN table holds besides counters, in any version.
_NOT_COUNTERS = frozenset({
    "Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr", "vgpr",
    "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "DispatchNs", "BeginNs", "EndNs", "CompleteNs",
    "DurationNs", "__section", "__lane",
})  # fmt: skip
_TIMES = {"start": "BeginNs", "end": "EndNs", "pid": "pid", "tid": "tid"}
_BARRIER = "<barrier packet>"


def sniff(head: bytes, path: Path) -> bool:
    if not mentions(head, path, *_TABLES):
        return False
    return not mentions(head, path, "rocpd_", "CUPTI_", "StringIds")


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in a results.db of the first rocprof. Raises InputError when it cannot be read as one."""
    path = Path(path)
    with open_database(path, partial=partial, max_bytes=max_bytes) as database:
        known = [
            table for table in _TABLES if "BeginNs" in database.columns(table) or "Index" in database.columns(table)
        ]
        check_tables(database, bool(known), "rocprof database")
        unread = Unread()
        kernels = _operations(database)
        dispatches = _dispatches(database)
        if kernels.height:
            # Both describe the same dispatches, OPS with their launches: reading both would double the GPU time.
            counted(unread, "dispatch of KERN that OPS holds too", dispatches.height)
            dispatches = dispatches.clear()
        by_hip = database.count("HIP") > 0 if "HIP" in database.tables else False
        frames = [
            kernels,
            dispatches,
            _copies(database),
            _calls(database, "HIP", linked=True),
            # HIP and HSA calls are numbered apart; GPU work refers to HIP calls where these were traced.
            _calls(database, "HSA", linked=not by_hip),
            _host(database, "rocTX", {}).with_columns(kind=pl.lit("annotation")),
        ]
        events = assemble(frames, unread)
        counters = _counters(database, unread)
        unread.update(database.unread)
        return Trace(
            events=events, source=str(path), unread=dict(unread), unread_ns=dict(unread.ns), format="rocprof-legacy-db", counters=counters
        )  # fmt: skip


def _texts(database: Database, table: str, column: str, height: int) -> pl.Series:
    names = [text(row[0]) for row in database.rows(table, [column])][:height]
    return pl.Series("name", names + [None] * (height - len(names)), dtype=pl.String).fill_null("")


def _host(database: Database, table: str, columns: dict[str, str]) -> pl.DataFrame:
    times = dict(_TIMES)
    if "pid" not in database.columns(table):
        times["pid"] = "proc-id"
    frame = database.integers(table, times | columns)
    return frame.with_columns(
        _texts(database, table, "Name", frame.height), pl.col("pid").cast(pl.String), pl.col("tid").cast(pl.String)
    )


def _calls(database: Database, table: str, *, linked: bool) -> pl.DataFrame:
    return _host(database, table, {"correlation": "Index"} if linked else {}).with_columns(kind=pl.lit("runtime"))


def _gpu(database: Database, table: str) -> pl.DataFrame:
    stream = "stream-id" if "stream-id" in database.columns(table) else "queue-id"
    return _host(database, table, {"device": "dev-id", "stream": stream, "correlation": "Index"})


def _operations(database: Database) -> pl.DataFrame:
    frame = _gpu(database, "OPS")
    barrier = pl.col("name").str.contains(_BARRIER, literal=True)
    return frame.with_columns(kind=pl.when(barrier).then(pl.lit("other")).otherwise(pl.lit("kernel")))


def _copies(database: Database) -> pl.DataFrame:
    frame = _gpu(database, "COPY")
    fill = pl.col("name").str.contains("(?i)fill|memset")
    return frame.with_columns(kind=pl.when(fill).then(pl.lit("memset")).otherwise(pl.lit("memcpy")))


def _dispatches(database: Database) -> pl.DataFrame:
    """Dispatches seen from HSA; without times where only counters were collected, and then no events."""
    columns = {"device": "gpu-id", "stream": "queue-id"}
    if "BeginNs" not in database.columns("KERN"):
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    frame = database.integers("KERN", _TIMES | columns)
    return frame.with_columns(
        _texts(database, "KERN", "KernelName", frame.height),
        pl.col("pid").cast(pl.String),
        pl.col("tid").cast(pl.String),
        kind=pl.lit("kernel"),
    )


def _counters(database: Database, unread: Unread) -> pl.DataFrame:
    """Every other column of KERN is a counter. Its Index counts dispatches and joins with no call."""
    names = [name for name in database.columns("KERN") if name not in _NOT_COUNTERS]
    parts = []
    for name in names:
        rows = database.rows("KERN", ["gpu-id", "KernelName", name])
        values = [(device, text(kernel), _number(value)) for device, kernel, value in rows]
        whole = [
            (None, device if isinstance(device, int) and abs(device) < 2**31 else None, kernel, name, value, None)
            for device, kernel, value in values
            if value is not None
        ]
        counted(unread, "counter without a number", len(values) - len(whole))
        parts.append(pl.DataFrame(whole, schema=pl.Schema(COUNTERS), orient="row"))
    return pl.concat(parts) if parts else pl.DataFrame(schema=pl.Schema(COUNTERS))


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except ValueError:
        return None
