"""Reads the workload folders of rocprof-compute, and single tables of counters as it and rocprofv2 write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl

from rung.errors import InputError
from rung.trace import rows as _rows
from rung.trace import source
from rung.trace.redact import redacted
from rung.trace.rocprof import tool_csv as _tool_csv
from rung.trace.rocprof import wide_counters as _wide_counters
from rung.trace.table import COUNTERS, SCHEMA, Trace
from rung.trace.unread import Unread

_TITLES = frozenset({"dispatch_id", "gpu_id", "kernel_name"})
_LONG = frozenset({"counter_name", "counter_value"})
# The joined table, and those of the passes, from which alone it is made. From ROCm 7.13 on `profile` leaves the latter and
# `analyze` joins them (ROCm/rocm-systems#3915), later both are packed (#9711, #10547). results_* have the long form.
PATTERNS = (
    "pmc_perf.csv|pmc_perf.csv.gz",
    "pmc_perf_*.csv|pmc_perf_*.csv.gz|results_pmc_perf_*.csv|results_pmc_perf_*.csv.gz",
)
_JOINED = ("pmc_perf.csv", "pmc_perf.csv.gz")
_PASS = re.compile(r"^(pmc_perf_\d+|results_(pmc_perf_\d+|SQ_[A-Z0-9_]+))\.csv(\.gz)?$")
_LEVEL = re.compile(r"^SQ_\w+\.csv$")
# Its meaning depends on the counter that it was collected with, which the file is named after.
_ACCUMULATED = "sq_accum_prev_hires"
_AGAIN = "counter value that another pass has too"


def sniff(head: bytes, path: Path) -> bool:
    """Whether `head` is the start of such a table, or `path` a folder with them."""
    if path.is_dir():
        return any(_has_titles(source.head(file)) for file in _tables(path))
    return _has_titles(head)


def _has_titles(head: bytes) -> bool:
    there = {_tool_csv.plain(title) for title in _tool_csv.titles(head)}
    return there >= _TITLES and bool(there - _TITLES)


def is_workload(folder: Path) -> bool:
    """Whether a folder has such tables, by their names."""
    return any(any(folder.glob(name)) for pattern in PATTERNS for name in pattern.split("|"))


def _tables(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    joined = [file for file in files if file.name in _JOINED][:1]
    others = [file for file in files if _LEVEL.match(file.name) or (not joined and _PASS.match(file.name))]
    return joined + others


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The dispatches and counters of a workload. A dispatch's correlation is its place in the run, from 0.

    Raises InputError when a file is missing, empty, cut off or something else; with `partial`, what is whole is read.
    """
    path = Path(path)
    unread = Unread()
    files = _tables(path) if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"{path} holds no pmc_perf.csv and no table of a pass: name the workload folder of rocprof-compute."
        )
    tables = [_read(file, partial, max_bytes, unread) for file in files]
    first = tables[0].frame
    gpus = _wide_counters.devices(first)
    counters = _counters(files, tables, gpus, unread)
    frames = [table.frame for table in tables]
    clock = path / "timestamps.csv" if path.is_dir() else None
    if clock is not None and clock.is_file():
        frames.append(_read(clock, partial, max_bytes, unread).frame)
    timed = next((frame for frame in frames if _timed(frame)), None)
    if timed is None:
        unread["dispatch without a time"] += first.height
        events = pl.DataFrame(schema=SCHEMA)
    else:
        queued = next((frame for frame in frames if "queue_id" in frame.columns), None)
        if queued is not None and "queue_id" not in timed.columns and _same_order(queued, timed):
            timed = timed.with_columns(queued["queue_id"])
        events = _wide_counters.events(timed, gpus, unread)
    meta, device = _system(path, partial, max_bytes) if path.is_dir() else ({}, {})
    return Trace(
        events=events,
        devices=[device] * len(gpus) if device else [],
        source=str(path),
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="rocprof-compute" if path.is_dir() or "pid" not in first.columns else "rocprofv2-csv",
        counters=counters,
        meta=meta,
    )


def _read(file: Path, partial: bool, max_bytes: int | None, unread: Unread) -> _tool_csv.Table:
    table = _tool_csv.table(source.content(file, max_bytes=max_bytes, partial=partial), file, partial)
    if not set(table.frame.columns) >= _TITLES:
        raise InputError(
            f"{file} is not a table of dispatches (no Dispatch_ID, GPU_ID, Kernel_Name): check its first line."
        )
    if not table.frame.height and not partial:
        raise InputError(f"{file} has a header and no rows: nothing was recorded, or it was cut off; record it again.")
    unread.update(table.lost)
    return table._replace(frame=_pivoted(table)) if set(table.frame.columns) >= _LONG else table


def _timed(frame: pl.DataFrame) -> bool:
    return all(title in frame.columns and (frame[title] != "").any() for title in ("start_timestamp", "end_timestamp"))


def _same_order(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether both list the same kernels in the same order: then a place names the same dispatch in both."""
    return one["kernel_name"].equals(other["kernel_name"])


def _pivoted(table: _tool_csv.Table) -> pl.DataFrame:
    """The long form of newer versions as the wide one: the time of a dispatch is the median over its rows, as there."""
    frame = table.frame
    keys = [title for title in ("dispatch_id", "kernel_name", "grid_size", "workgroup_size") if title in frame.columns]
    start, end = _tool_csv.integer("start_timestamp"), _tool_csv.integer("end_timestamp")
    table.titles.update({name: name for name in frame["counter_name"].unique()})
    wide = frame.pivot(
        "counter_name", index=keys, values="counter_value", aggregate_function="first", maintain_order=True
    ).with_columns(pl.all().fill_null(""))
    timed = {"start_timestamp", "end_timestamp"} <= set(frame.columns)
    facts = frame.group_by(keys, maintain_order=True).agg(
        pl.col("gpu_id").first(),
        *([start.min().alias("start"), (end - start).median().round().cast(pl.Int64).alias("dur")] if timed else []),
    )
    if timed:
        facts = facts.with_columns(
            start_timestamp=pl.col("start").cast(pl.String).fill_null(""),
            end_timestamp=(pl.col("start") + pl.col("dur")).cast(pl.String).fill_null(""),
        ).drop("start", "dur")
    return facts.join(wide, on=keys, how="left", maintain_order="left")


def _counters(files: list[Path], tables: list[_tool_csv.Table], gpus: dict[str, int], unread: Unread) -> pl.DataFrame:
    made: list[pl.DataFrame] = []
    seen: set[str] = set()
    for file, table in zip(files, tables, strict=True):
        names: dict[str, str] = {}
        for title in filter(_wide_counters.is_counter, table.frame.columns):
            name = table.titles[title]
            if title == _ACCUMULATED:
                name = f"{file.name.split('.')[0]}/{name}"
            if name in seen:
                unread[_AGAIN] += table.frame.height
            else:
                names[title] = name
        seen |= set(names.values())
        values = _wide_counters.counters(table.frame, names, gpus, unread)
        if not _same_order(table.frame, tables[0].frame):
            # The passes ran other kernels, or in another order: their places do not name the same dispatch.
            values = values.with_columns(correlation=pl.lit(None, pl.Int64))
        made.append(values)
    return _rows.stacked(made, COUNTERS)


def _system(folder: Path, partial: bool, max_bytes: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts about the run from sysinfo.csv and roofline.csv, and the GPU as far as they describe it."""
    meta: dict[str, Any] = {}
    device: dict[str, Any] = {}
    if (sysinfo := folder / "sysinfo.csv").is_file():
        table = _tool_csv.table(source.content(sysinfo, max_bytes=max_bytes, partial=partial), sysinfo, partial)
        known = table.frame.row(0, named=True) if table.frame.height else {}
        meta["sysinfo"] = redacted({key: _value(text) for key, text in known.items() if text})
        meta |= {name: meta["sysinfo"][key] for key, name in _FACTS.items() if key in meta["sysinfo"]}
        device = {key: value for key, value in meta["sysinfo"].items() if key in _OF_GPU}
        if model := meta["sysinfo"].get("gpu_model"):
            device = {"name": model, **device}
    if (roofline := folder / "roofline.csv").is_file():
        table = _tool_csv.table(source.content(roofline, max_bytes=max_bytes, partial=partial), roofline, partial)
        meta["roofline"] = [
            {table.titles[key]: _value(text) for key, text in row.items()} for row in table.frame.to_dicts()
        ]
    return meta, device


_FACTS = {"hostname": "host", "command": "command", "rocm_version": "rocm_version", "workload_name": "workload"}
_OF_GPU = (
    *(
        "gpu_model",
        "gpu_series",
        "gpu_arch",
        "gpu_chip_id",
        "gpu_l1",
        "gpu_l2",
        "cu_per_gpu",
        "simd_per_cu",
        "se_per_gpu",
    ),
    *("wave_size", "workgroup_max_size", "max_waves_per_cu", "max_sclk", "max_mclk", "cur_sclk", "cur_mclk", "num_xcd"),
    *("total_l2_chan", "lds_banks_per_cu", "sqc_per_gpu", "pipes_per_gpu", "hbm_bw", "num_hbm_channels", "vbios"),
    *("compute_partition", "memory_partition"),
)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
