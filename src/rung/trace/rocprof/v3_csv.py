"""Reads the CSV files of rocprofv3: one of them, or a folder with those of one or several processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from rung.errors import InputError
from rung.trace import rows as _rows
from rung.trace import source
from rung.trace.rocprof import v3_process as _rocprofv3_process
from rung.trace.rocprof.tool_csv import plain, titles
from rung.trace.rocprof.v3_layouts import layout_of
from rung.trace.table import COUNTERS, SCHEMA, Trace
from rung.trace.unread import Unread

# <dir>/<base>_<what>.csv, and <base> is <pid> unless -o says otherwise.
_KINDS = (
    "kernel|hip|hip_api|hip_compiler_api|hip_runtime_api|hsa|hsa_api|marker|marker_api|rccl_api|rocdecode_api|"
    "rocjpeg_api|memory_copy|memory_allocation|scratch_memory|counter_collection|domain"
)
_FILE = re.compile(
    rf"^(?P<base>.*?)_?(?:(?:{_KINDS})_(?:trace|stats)|regions|agent_info|counter_collection|pc_sampling_[a-z_]+)"
    r"\.csv(?:\.gz)?$",
    re.IGNORECASE,
)
# Every line of counters in an input file runs the whole program again: pmc_1/, pmc_2/ or pass_1/, …
_PASS = re.compile(r"^(?:pmc|pass)_(\d+)$")
_RANK = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)
_OTHER_PASS = "event of another counter pass of the same program"


def sniff(head: bytes, path: Path) -> bool:
    """Whether `head` is the start of such a file, or `path` a folder that holds one."""
    if path.is_dir():
        return next(_files(path), None) is not None
    return layout_of([plain(title) for title in titles(head)]) is not None


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in `path`: a CSV of rocprofv3, or the folder of its CSVs. Times are on the boot clock.

    Raises InputError when a file is missing, empty, cut off or something else; with `partial`, what is whole is read.
    """
    path = Path(path)
    if path.is_dir():
        groups = _grouped(path)
        if not groups:
            raise InputError(f"{path} holds no CSV of rocprofv3: name its output directory.")
    else:
        groups = {(path.parent, ""): [path]}
    processes = [
        _rocprofv3_process.read(files, base, _host(where, base, path), partial, max_bytes)
        for (where, base), files in groups.items()
    ]
    unread = Unread()
    for process in processes:
        unread.more(process.unread, process.unread.ns)
    first_pass = min(filter(None, (_pass(where) for where, _ in groups)), default=None)
    ranks = _ranks(list(groups), processes, path)
    events, counters = [], []
    for (where, _), process, rank in zip(groups, processes, ranks, strict=True):
        counters.append(process.counters.with_columns(rank=pl.lit(rank, pl.Int32)))
        if first_pass is not None and _pass(where) not in (None, first_pass):
            if process.events.height:
                unread.count(_OTHER_PASS, process.events.height, int(process.events["dur"].sum()))
            continue
        events.append(process.events.with_columns(rank=pl.lit(rank, pl.Int32)))
    facts = [process.meta for process in processes if process.meta]
    return Trace(
        events=_rows.stacked(events, SCHEMA),
        devices=next((process.devices for process in processes if process.devices), []),
        source=str(path),
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="rocprofv3-csv",
        counters=_rows.stacked(counters, COUNTERS),
        meta=facts[0] if len(facts) == 1 else {"processes": facts} if facts else {},
    )


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.csv*")):
        if path.is_file() and layout_of([plain(title) for title in titles(source.head(path))]):
            yield path


def _grouped(folder: Path) -> dict[tuple[Path, str], list[Path]]:
    """The files of a folder by process: those beside each other whose names begin alike."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path in _files(folder):
        named = _FILE.match(path.name)
        groups.setdefault((path.parent, named["base"] if named else path.stem), []).append(path)
    return dict(sorted(groups.items(), key=lambda group: _rows.natural("{}/{}".format(*group[0]))))


def _host(where: Path, base: str, path: Path) -> str:
    """The default name is <host>/<pid>."""
    return where.name if path.is_dir() and where != path and base.isdigit() and not _PASS.match(where.name) else ""


def _pass(where: Path) -> int | None:
    found = next((found for part in reversed(where.parts) if (found := _PASS.match(part))), None)
    return int(found[1]) if found else None


def _ranks(groups: list[tuple[Path, str]], processes: list[_rocprofv3_process.Process], path: Path) -> list[int | None]:
    """The rank of each process: as its name says, else by order among those of one run that used a GPU."""
    if not path.is_dir():
        named = _RANK.search(path.name)
        return [int(named[1]) if named else None]
    said = [_RANK.search(f"{where.relative_to(path)}/{base}") for where, base in groups]
    if any(said):
        return [int(found[1]) if found else None for found in said]
    ranks: list[int | None] = [None] * len(groups)
    passes: dict[int | None, list[int]] = {}
    for place, (where, _) in enumerate(groups):
        if processes[place].events["device"].is_not_null().any():
            passes.setdefault(_pass(where), []).append(place)
    for places in passes.values():
        for rank, place in enumerate(places if len(places) > 1 else []):
            ranks[place] = rank
    return ranks
