"""Reads the SQLite database that `nsys export --type sqlite` makes of a Nsight Systems report.

The tables that exist depend on what was traced, their columns on the version: both are looked up, none is required.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from rung.trace.databases.columns import Database, check_tables, integer, text
from rung.trace.databases.sqlite import mentions, open_database
from rung.trace.rows import PROCESS_SHIFT, assemble, counted
from rung.trace.table import Trace
from rung.trace.unread import Unread

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_COPIES = {
    0: "Unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP",
}  # fmt: skip
_NVTX_MARK, _NVTX_RANGES = 34, (59, 60)
# Facts about the run; the environment of the profiled process is not among them.
_SYSTEM = frozenset(
    {"Hostname", "OsVersion", "CpuArchitecture", "CpuName", "CpuCores", "CudaDriverVersion", "GpuDriverVersion"}
)
_VERSION_SUFFIX = re.compile(r"_v\d{4,5}$")  # cudaLaunchKernel_v7000; the 2 of cuMemAlloc_v2 is part of its name
_READ = {
    f"{_CUPTI}KERNEL", f"{_CUPTI}MEMCPY", f"{_CUPTI}MEMSET", f"{_CUPTI}RUNTIME", f"{_CUPTI}GRAPH_TRACE", "NVTX_EVENTS",
    "OSRT_API", "CUDA_GPU_MEMORY_USAGE_EVENTS",
}  # fmt: skip


def sniff(head: bytes, path: Path) -> bool:
    return mentions(head, path, _CUPTI, "TARGET_INFO_GPU", "TARGET_INFO_SYSTEM_ENV", "NVTX_EVENTS", "META_DATA_EXPORT")


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in an exported Nsight Systems report. Raises InputError when it cannot be read as one."""
    path = Path(path)
    with open_database(path, partial=partial, max_bytes=max_bytes) as database:
        ours = (_CUPTI, "TARGET_INFO_", "NVTX_EVENTS", "META_DATA_", "OSRT_API")
        check_tables(database, any(table.startswith(ours) for table in database.tables), "Nsight Systems export")
        return _Report(database).trace()


class _Report:
    def __init__(self, database: Database) -> None:
        self.db = database
        self.unread = Unread()
        self.strings = {key: text(value) for key, value in database.rows("StringIds", ["id", "value"])}

    def trace(self) -> Trace:
        devices, positions = self._devices()
        frames = [*self._gpu(positions), *self._host(), self._nvtx(), self._allocations(positions)]
        for table in self.db.tables:
            if (
                table not in _READ
                and {"start", "timestamp"} & set(self.db.columns(table))
                and not table.startswith("TARGET_")
            ):
                counted(self.unread, f"row of {table}", self.db.count(table))
        events = _apart(assemble(frames, self.unread))
        self.unread.update(self.db.unread)
        return Trace(
            events=events,
            devices=devices,
            source=str(self.db.path),
            unread=dict(self.unread),
            unread_ns=dict(self.unread.ns),
            format="nsys",
            meta=self._meta(),
        )

    def _meta(self) -> dict[str, Any]:
        facts = {f"{name}": text(value) for name, value in self.db.rows("META_DATA_EXPORT", ["name", "value"])}
        system = {str(n): text(value) for n, value in self.db.rows("TARGET_INFO_SYSTEM_ENV", ["name", "value"])}
        start = self.db.rows("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
        return {
            "tool_version": facts.get("EXPORT_PRODUCT_VERSION"),
            "schema_version": facts.get("EXPORT_SCHEMA_VERSION"),
            "host": system.get("Hostname"),
            "system": {name: value for name, value in system.items() if name in _SYSTEM},
            "start": integer(start[0][0]) if start else None,  # of the trace's clock, ns since 1970
        }

    def _devices(self) -> tuple[list[dict[str, Any]], dict[tuple[int, int], int]]:
        """The GPUs of the machine, and the place among them of what each process calls device n."""
        columns = self.db.columns("TARGET_INFO_GPU")
        rows = [dict(zip(columns, row, strict=True)) for row in self.db.rows("TARGET_INFO_GPU", columns)]
        rows = [row for row in rows if isinstance(row.get("id"), int)]
        rows.sort(key=lambda row: row["id"])
        places = {row["id"]: place for place, row in enumerate(rows)}
        named = self.db.rows("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"])
        positions = {(pid, cuda): places[gpu] for pid, cuda, gpu in named if gpu in places}
        return [{k: text(v) if isinstance(v, bytes) else v for k, v in row.items()} for row in rows], positions

    def _named(self, ids: pl.Expr, otherwise: str) -> pl.Expr:
        known = {key: value for key, value in self.strings.items() if isinstance(key, int) and value is not None}
        unknown = pl.format(f"{otherwise} {{}}", ids.fill_null(-1))
        return ids.replace_strict(known, default=None, return_dtype=pl.String).fill_null(unknown) if known else unknown

    def _table(self, table: str, **columns: str) -> pl.DataFrame:
        return self.db.integers(table, {"start": "start", "end": "end"} | columns)

    def _gpu(self, positions: dict[tuple[int, int], int]) -> list[pl.DataFrame]:
        common = {"device": "deviceId", "stream": "streamId", "correlation": "correlationId", "gpid": "globalPid"}
        kernels = self._table(f"{_CUPTI}KERNEL", long="demangledName", short="shortName", old="name", **common)
        graphs = self._table(f"{_CUPTI}GRAPH_TRACE", graph="graphId", **common)
        copies = self._table(f"{_CUPTI}MEMCPY", bytes="bytes", copy="copyKind", **common)
        sets = self._table(f"{_CUPTI}MEMSET", bytes="bytes", **common)
        copy = pl.col("copy").replace_strict(_COPIES, default="Unknown", return_dtype=pl.String)
        frames = [
            kernels.with_columns(
                kind=pl.lit("kernel"), name=self._named(pl.coalesce("long", "short", "old"), "kernel")
            ),
            # With --cuda-graph-trace=graph, the default, a graph is one row: its time is kernels' time.
            graphs.with_columns(kind=pl.lit("kernel"), name=pl.format("CUDA graph {}", pl.col("graph").fill_null(-1))),
            copies.with_columns(kind=pl.lit("memcpy"), name=pl.format("Memcpy {}", copy)),
            sets.with_columns(kind=pl.lit("memset"), name=pl.lit("Memset")),
        ]
        return [_placed(frame, positions) for frame in frames]

    def _host(self) -> list[pl.DataFrame]:
        calls = {"name_id": "nameId", "gtid": "globalTid"}
        runtime = self._table(f"{_CUPTI}RUNTIME", correlation="correlationId", **calls)
        system = self._table("OSRT_API", **calls)
        named = self._named(pl.col("name_id"), "call")
        return [
            _threads(runtime.with_columns(kind=pl.lit("runtime"), name=named.str.replace(_VERSION_SUFFIX.pattern, ""))),
            _threads(system.with_columns(kind=pl.lit("other"), name=named)),
        ]

    def _nvtx(self) -> pl.DataFrame:
        frame = self._table("NVTX_EVENTS", type="eventType", text_id="textId", gtid="globalTid")
        if not frame.height:
            return frame
        texts = [text(row[0]) for row in self.db.rows("NVTX_EVENTS", ["text"])][: frame.height]
        frame = frame.head(len(texts)).with_columns(pl.Series("text", texts, dtype=pl.String))
        kind = pl.col("type").fill_null(_NVTX_RANGES[0])
        mark, span = kind == _NVTX_MARK, kind.is_in(_NVTX_RANGES)
        counted(self.unread, "NVTX event that is not a range or mark", frame.filter(~mark & ~span).height)
        frame = frame.filter(mark | span).with_columns(end=pl.when(mark).then(pl.col("start")).otherwise(pl.col("end")))
        whole = frame.filter(pl.col("end").is_not_null())
        counted(self.unread, "NVTX range without an end", frame.height - whole.height)
        name = pl.coalesce("text", self._named(pl.col("text_id"), "NVTX text"))
        return _threads(whole.with_columns(kind=pl.lit("annotation"), name=name))

    def _allocations(self, positions: dict[tuple[int, int], int]) -> pl.DataFrame:
        frame = self.db.integers(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            {"start": "start", "end": "start", "bytes": "bytes", "device": "deviceId", "gpid": "globalPid"}
            | {"operation": "memoryOperationType", "correlation": "correlationId"},
        )
        free = pl.col("operation") == 1
        name = pl.when(free).then(pl.lit("MEMORY_FREE")).otherwise(pl.lit("MEMORY_ALLOCATE"))
        return _placed(frame.with_columns(kind=pl.lit("allocation"), name=name), positions)


def _pid(serial: pl.Expr) -> pl.Expr:
    """The process in a globalPid or globalTid: 8 bits of hardware, 8 of virtual machine, 24 of process, 24 of thread."""
    return (serial // (1 << 24)) % (1 << 24)


def _placed(frame: pl.DataFrame, positions: dict[tuple[int, int], int]) -> pl.DataFrame:
    frame = frame.with_columns(process=_pid(pl.col("gpid")))
    if positions:
        rows = [(pid, cuda, place) for (pid, cuda), place in positions.items()]
        known = pl.DataFrame(rows, schema=dict.fromkeys(("process", "device", "place"), pl.Int64), orient="row")
        frame = frame.join(known, on=["process", "device"], how="left", maintain_order="left")
        frame = frame.with_columns(device=pl.coalesce("place", "device"))
    return frame.with_columns(pid=pl.col("process").cast(pl.String))


def _threads(frame: pl.DataFrame) -> pl.DataFrame:
    serial = pl.col("gtid")
    return frame.with_columns(pid=_pid(serial).cast(pl.String), tid=(serial % (1 << 24)).cast(pl.String))


def _apart(events: pl.DataFrame) -> pl.DataFrame:
    """Correlation ids made unique over processes, which all count from one."""
    pids = events["pid"].drop_nulls().unique(maintain_order=True).to_list()
    if len(pids) < 2:
        return events
    place = pl.col("pid").replace_strict({pid: i for i, pid in enumerate(pids)}, default=0, return_dtype=pl.Int64)
    return events.with_columns(correlation=pl.col("correlation") + place * (1 << PROCESS_SHIFT))
