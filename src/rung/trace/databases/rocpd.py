"""Reads rocpd databases, what rocprofv3 writes from ROCm 7.0: one SQLite file a process, or several merged into one.

Only the tables are read, never the views: they hold the same, and a database made without its views reads alike. The
tables of each process carry a suffix made from its guid; ids are only unique within it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from rung.trace.databases import rocpd_info
from rung.trace.databases.columns import Database, check_tables, text
from rung.trace.databases.sqlite import mentions, open_database
from rung.trace.rows import assemble, counted
from rung.trace.table import COUNTERS, Trace
from rung.trace.unread import Unread

_EVENT = {"stack": "stack_id", "external": "correlation_id"}
_ALLOCATIONS = {
    ("ALLOC", "REAL"): "MEMORY_ALLOCATION_ALLOCATE",
    ("FREE", "REAL"): "MEMORY_ALLOCATION_FREE",
    ("ALLOC", "VIRTUAL"): "MEMORY_ALLOCATION_VMEM_ALLOCATE",
    ("FREE", "VIRTUAL"): "MEMORY_ALLOCATION_VMEM_FREE",
    ("ALLOC", "SCRATCH"): "SCRATCH_MEMORY_ALLOC",
    ("FREE", "SCRATCH"): "SCRATCH_MEMORY_FREE",
    ("RECLAIM", "SCRATCH"): "SCRATCH_MEMORY_ASYNC_RECLAIM",
}
_READ = frozenset({
    "metadata", "string", "info_node", "info_process", "info_thread", "info_agent", "info_pmc", "info_kernel_symbol",
    "track", "event", "pmc_event", "region", "sample", "kernel_dispatch", "memory_copy", "memory_allocate",
})  # fmt: skip
_DETAILS = frozenset({"info_queue", "info_stream", "info_code_object", "arg"})  # of no event of their own


def sniff(head: bytes, path: Path) -> bool:
    return mentions(head, path, "rocpd_metadata", "rocpd_kernel_dispatch", "rocpd_string")


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in a rocpd database, of one process or of several.

    partial: read what is whole of a damaged one. max_bytes: the most that a gzip one may unpack to.
    Raises InputError when the file is missing, empty, damaged, locked or something else.
    """
    path = Path(path)
    with open_database(path, partial=partial, max_bytes=max_bytes) as database:
        suffixes = rocpd_info.suffixes(database)
        check_tables(database, bool(suffixes), "rocpd database")
        return joined([_Process(database, suffix).trace(i) for i, suffix in enumerate(suffixes)], str(path), database)


def read_many(paths: Sequence[Path], *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The databases of one run as one trace. A rank is what the process's environment says, else the file's place."""
    return rocpd_info.as_ranks([read(path, partial=partial, max_bytes=max_bytes) for path in paths])


def joined(traces: Sequence[Trace], source: str, database: Database) -> Trace:
    unread = Unread(database.unread)
    for trace in traces:
        unread.more(trace.unread, trace.unread_ns)
    return Trace(
        events=pl.concat([trace.events for trace in traces]),
        devices=max((trace.devices for trace in traces), key=len),
        source=source,
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="rocpd",
        counters=pl.concat([trace.counters for trace in traces]),
        meta={"schema_version": traces[0].meta["schema_version"], "processes": [trace.meta["process"] for trace in traces]},
    )  # fmt: skip


class _Process:
    """The tables of one process."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.db = database
        self.suffix = suffix
        self.unread = Unread()
        self.strings = {row[0]: text(row[1]) for row in self._rows("string", "id", "string")}
        self.agents = rocpd_info.agents(database, suffix)
        self.pids = dict(self._rows("info_process", "id", "pid"))
        self.tids = dict(self._rows("info_thread", "id", "tid"))

    def _rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        return self.db.rows(f"rocpd_{table}{self.suffix}", list(columns))

    def _table(self, table: str, *columns: str, **more: str) -> pl.DataFrame:
        """Integer columns of a table, joined with its events."""
        wanted = {name: name for name in columns} | more
        return self.db.integers(
            f"rocpd_{table}{self.suffix}", wanted, (f"rocpd_event{self.suffix}", "event_id", _EVENT)
        )

    def trace(self, position: int) -> Trace:
        meta = rocpd_info.process(self.db, self.suffix)
        events, counters = self._dispatches(position)
        frames = [events, self._copies(), self._allocations(), self._regions(), self._samples()]
        for table in self.db.tables:
            # Later schemas add tables of events; none of them goes by unnoticed.
            what = table.removeprefix("rocpd_").removesuffix(self.suffix)
            known = what in _READ or what in _DETAILS or not table.startswith("rocpd_")
            if not known and table.endswith(self.suffix) and (rows := self.db.count(table)):
                self.unread[f"row of rocpd_{what}"] += rows
        return Trace(
            events=assemble(frames, self.unread, rank=meta.get("rank"), shift=position),
            devices=self.agents.devices,
            unread=dict(self.unread),
            unread_ns=dict(self.unread.ns),
            counters=counters.with_columns(rank=pl.lit(meta.get("rank"), pl.Int32)),
            meta={"schema_version": rocpd_info.schema_version(self.db, self.suffix), "process": meta},
        )

    def _finish(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Process and thread ids of the system, correlation ids, in place of the file's own ids."""
        pids, tids = (
            pl.col(name).replace_strict(known, default=pl.col(name), return_dtype=pl.Int64).cast(pl.String)
            if known else pl.col(name).cast(pl.String)
            for name, known in (("pid", self.pids), ("tid", self.tids))
        )  # fmt: skip
        return frame.with_columns(
            pids,
            tids,
            correlation=pl.col("stack"),
            external_id=pl.when(pl.col("external") != 0).then(pl.col("external")),  # 0: none was pushed
        )

    def _named(self, ids: pl.Expr, names: dict[int, str | None], otherwise: str) -> pl.Expr:
        """A name by its id; an id that the file does not explain keeps its number, its event is not lost."""
        unknown = pl.format(f"{otherwise} {{}}", ids.fill_null(-1))
        known = {key: name for key, name in names.items() if name is not None and isinstance(key, int)}
        if not known:
            return unknown
        return ids.replace_strict(known, default=None, return_dtype=pl.String).fill_null(unknown)

    def _device(self, ids: pl.Expr) -> pl.Expr:
        return ids.replace_strict(self.agents.positions or {-1: None}, default=None, return_dtype=pl.Int32)

    def _dispatches(self, position: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        frame = self._table(
            "kernel_dispatch",
            "start",
            "end",
            "pid",
            "tid",
            "agent_id",
            "kernel_id",
            "stream_id",
            "queue_id",
            "event_id",
        )
        frame = frame.select(
            "start", "end", "pid", "tid", "stack", "external", "event_id",
            kind=pl.lit("kernel"),
            name=self._named(pl.col("kernel_id"), rocpd_info.kernel_names(self.db, self.suffix), "kernel"),
            device=self._device(pl.col("agent_id")),
            stream=pl.coalesce("stream_id", "queue_id"),
        )  # fmt: skip
        counters = self._counters(frame)
        if position:
            counters = counters.with_columns(pl.col("correlation") + (position << 48))
        return self._finish(frame), counters

    def _counters(self, dispatches: pl.DataFrame) -> pl.DataFrame:
        names = {row[0]: text(row[1]) for row in self._rows("info_pmc", "id", "name")}
        rows = [
            (event, pmc, float(value))
            for event, pmc, value in self._rows("pmc_event", "event_id", "pmc_id", "value")
            if isinstance(value, (int, float)) and isinstance(event, int) and isinstance(pmc, int)
        ]
        total = (
            self.db.count(f"rocpd_pmc_event{self.suffix}") if f"rocpd_pmc_event{self.suffix}" in self.db.tables else 0
        )
        counted(self.unread, "counter without an event or a number", total - len(rows))
        if not rows:
            return pl.DataFrame(schema=COUNTERS)
        schema = {"event_id": pl.Int64, "pmc": pl.Int64, "value": pl.Float64}
        values = pl.DataFrame(rows, schema=schema, orient="row")
        values = values.with_columns(counter=self._named(pl.col("pmc"), names, "counter"))
        # One row an instance (one for each XCD, say): what a kernel did is their sum.
        values = values.group_by("event_id", "counter", maintain_order=True).agg(pl.col("value").sum(), rows=pl.len())
        kernels = dispatches.select(
            "event_id", correlation="stack", device="device", kernel="name", rank=pl.lit(None, pl.Int32)
        )
        found = values.join(kernels.unique("event_id"), on="event_id", how="left")
        counted(self.unread, "counter of no kernel", int(found.filter(pl.col("kernel").is_null())["rows"].sum()))
        return found.filter(pl.col("kernel").is_not_null()).select(list(COUNTERS)).cast(pl.Schema(COUNTERS))

    def _copies(self) -> pl.DataFrame:
        frame = self._table(
            "memory_copy", "start", "end", "pid", "tid", "name_id", "dst_agent_id", "src_agent_id", "stream_id", "queue_id",
            bytes="size",
        )  # fmt: skip
        return self._finish(
            frame.with_columns(
                kind=pl.lit("memcpy"),
                name=self._named(pl.col("name_id"), self.strings, "copy"),
                device=pl.coalesce(self._device(pl.col("dst_agent_id")), self._device(pl.col("src_agent_id"))),
                stream=pl.coalesce("stream_id", "queue_id"),
            )
        )

    def _allocations(self) -> pl.DataFrame:
        frame = self._table("memory_allocate", "start", "end", "pid", "tid", "agent_id", bytes="size")
        kinds = self._rows("memory_allocate", "type", "level")[: frame.height]
        names = [_ALLOCATIONS.get(pair, " ".join(str(part) for part in pair if part)) for pair in kinds]
        return self._finish(
            frame.with_columns(
                pl.Series("name", names, dtype=pl.String),
                kind=pl.lit("allocation"),
                device=self._device(pl.col("agent_id")),
            )
        )

    def _categories(self) -> dict[int, str]:
        return {key: rocpd_info.kind_of(name or "") for key, name in self.strings.items()}

    def _messages(self) -> dict[int, str]:
        """The text of each marker, which stands beside its name, by the id of its event."""
        markers = {key for key, name in self.strings.items() if name and name.startswith("MARKER")}
        if not markers:
            return {}
        found = {}
        for event, category, extdata in self._rows("event", "id", "category_id", "extdata"):
            if category in markers and isinstance(extdata, (str, bytes)) and len(extdata) > 2:
                try:
                    message = json.loads(extdata).get("message")
                except (ValueError, AttributeError, RecursionError):
                    continue
                if message:
                    found[event] = str(message)
        return found

    def _host(self, frame: pl.DataFrame) -> pl.DataFrame:
        messages, kinds = self._messages(), self._categories()
        name = self._named(pl.col("name_id"), self.strings, "region")
        if messages:
            name = pl.col("event_id").replace_strict(messages, default=name, return_dtype=pl.String)
        kind = pl.lit("other")
        if kinds:
            kind = pl.col("category").replace_strict(kinds, default="other", return_dtype=pl.String)
        return self._finish(frame.with_columns(name=name, kind=kind))

    def _joined(self, table: str, columns: dict[str, str]) -> pl.DataFrame:
        return self.db.integers(
            f"rocpd_{table}{self.suffix}",
            columns,
            (f"rocpd_event{self.suffix}", "event_id", _EVENT | {"category": "category_id"}),
        )

    def _regions(self) -> pl.DataFrame:
        columns = ("start", "end", "pid", "tid", "name_id", "event_id")
        return self._host(self._joined("region", {name: name for name in columns}))

    def _samples(self) -> pl.DataFrame:
        """What took no time: roctx marks, and calls shorter than the clock."""
        frame = self._joined(
            "sample", {"start": "timestamp", "end": "timestamp", "track_id": "track_id", "event_id": "event_id"}
        )
        tracks = self.db.integers(f"rocpd_track{self.suffix}", {n: n for n in ("id", "pid", "tid", "name_id")})
        return self._host(
            frame.join(tracks.unique("id"), left_on="track_id", right_on="id", how="left", maintain_order="left")
        )
