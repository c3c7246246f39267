"""The door to every format: `read` finds out what a file is, and who reads it.

To add a format, write a module with `sniff(head, path)` and `read(path, *, partial, max_bytes)`, name it in FORMATS, and describe it
in `formats.py`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rung.errors import InputError
from rung.trace import cache as store
from rung.trace import clocks, entries
from rung.trace.devices import with_devices
from rung.trace.formats import tools
from rung.trace.parallel import processes_for, read_all
from rung.trace.ranks import merged
from rung.trace.repeats import REASON, repeated
from rung.trace.source import HEAD, Source, head
from rung.trace.spool import as_file
from rung.trace.table import Trace

log = logging.getLogger(__name__)

# Asked in this order, the more particular before the more general. A module is imported only when those before it
# have declined.
FORMATS = {
    "rocprofv3-json": "rung.trace.rocprof.v3_json",
    "rocprof": "rung.trace.rocprof.legacy_csv",
    "kineto": "rung.trace.kineto.reader",
    "rocprofv3-csv": "rung.trace.rocprof.v3_csv",
    "rocprof-compute": "rung.trace.rocprof.compute",
    "ncu-csv": "rung.trace.ncu_csv",
    "database": "rung.trace.databases.formats",
    "pftrace": "rung.trace.perfetto.reader",
}
# What must stand near the beginning of a file for these to be asked at all: to import them takes longer than to read a
# small trace of torch.profiler, which comes after them.
_MARKS = {
    "rocprofv3-json": re.compile(rb"rocprofiler-sdk-tool"),
    "rocprof": re.compile(rb'\A\s*[^{\[\s]|"BeginNs"|"traceEvents"\s*:\s*\[\s*\{\s*\}'),
}
# Whose CSV files only mean something together.
FOLDERS = ("rocprof-compute", "rocprofv3-csv")


def read(
    path: str | Path,
    *,
    partial: bool = False,
    max_bytes: int | None = None,
    cache: bool = True,
    without: Collection[Path] = (),
) -> Trace:
    """The trace in `path`, in whatever known format; all traces in it, as ranks of one run, where it is a directory.

    The format and the compression are told by content, not by name. A pipe is read to its end first.
    partial: of a file that is damaged or cut off, read what is whole before the damage; `meta["cut"]` says what it was.
    max_bytes: refuse a file whose decompressed content is larger (default: 4 GiB), and one with a single value above
        a 64th of it.
    cache: keep the tables of a large file for the next time, and use them now if they are there.
    without: files of a directory that are left out.
    Raises InputError when there is nothing to read or it cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return _read_directory(path, without, partial=partial, max_bytes=max_bytes, cache=cache)
    with as_file(path, max_bytes) as place:
        cache = cache and place == path
        trace = _read_file(place, _reader_or_refusal, partial=partial, max_bytes=max_bytes, cache=cache)
    assert trace is not None
    return trace if place == path else replace(trace, source=str(path))


def _read_file(
    path: Path, choose: Callable[[Path, bool], Any], *, partial: bool, max_bytes: int | None, cache: bool
) -> Trace | None:
    """The trace from the cache or by the reader that `choose` names; None where it names none."""
    # What is partly read depends on the damage, and a limit is a wish to see the file refused: neither is cached.
    cached = cache and not partial and max_bytes is None and entries.worthwhile(path)
    key = entries.key(path) if cached else ""
    kept = store.load(key) if cached else ""
    if isinstance(kept, Trace):
        return replace(kept, source=str(path))
    reader = choose(path, partial)  # only now: to import the readers takes longer than to open the cache
    if reader is None:
        return None
    trace = with_devices(reader.read(path, partial=partial, max_bytes=max_bytes))
    problem = (store.save(key, trace) or kept) if cached else ""
    return replace(trace, meta=trace.meta | {"cache": problem}) if problem else trace


def _reader_or_refusal(path: Path, partial: bool) -> Any:
    start = head(path)
    reader = _reader(start, path)
    if reader is None:
        _refuse_damage(path, partial)
        if not start.strip():
            raise InputError(f"{path} is empty: record the trace again.")
        if start.lstrip()[:1] not in (b"{", b"["):
            raise InputError(
                f"{path} is not a torch.profiler trace, nor one of another profiler that is known ({tools()}): "
                "give a file that a profiler wrote."
            )
        reader = import_module(FORMATS["kineto"])  # JSON: it says best what is missing
    return reader


def _reader_or_none(path: Path, partial: bool) -> Any:
    start = head(path) if path.stat().st_size else b""
    return _reader(start, path) if start.strip() else None


def _reader(start: bytes, path: Path) -> Any:
    """The module that reads this file, or None."""
    for name, module_name in FORMATS.items():
        if name in _MARKS and not _MARKS[name].search(start):
            continue
        module = import_module(module_name)
        if module.sniff(start, path):
            return module
    return None


def _refuse_damage(path: Path, partial: bool) -> None:
    """A sentence about a damaged gzip stream, where that is why the beginning says nothing."""
    if not partial:
        source = Source(path)
        for _ in source:
            if source.size >= HEAD:
                break


def read_one(file: Path, **how: Any) -> Trace | None:
    """The trace of a file in a folder; None where it is none."""
    return _read_file(file, _reader_or_none, **how)


def files_in(folder: Path) -> list[Path]:
    """The files of a folder that may be traces, by name."""
    files = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return sorted(file for file in files if file.name != clocks.NAME)


def folder_reader(folder: Path) -> Any:
    """The module that reads CSV files of this folder together, or None."""
    modules = (import_module(FORMATS[name]) for name in FOLDERS)
    return next((module for module in modules if module.sniff(b"", folder)), None)


def _read_each(files: list[Path], **how: Any) -> Iterator[Trace | None]:
    processes = processes_for(files)
    if processes > 1:
        traces = read_all(f"{__name__}:read_one", files, processes, how)
    else:
        traces = (read_one(file, **how) for file in files)
    for number, trace in enumerate(traces, 1):
        log.info("read %d of %d files", number, len(files))
        yield trace


def _read_directory(
    path: Path, without: Collection[Path], *, partial: bool, max_bytes: int | None, cache: bool
) -> Trace:
    left_out = {file.resolve() for file in without}
    files = files_in(path)
    files = [file for file in files if not left_out or file.resolve() not in left_out]
    if not files and not any(path.iterdir()):
        raise InputError(f"The directory {path} has no file in it: give the one with the traces.")
    traces, names, skipped = [], [], []
    if module := folder_reader(path):
        traces.append(with_devices(module.read(path, partial=partial, max_bytes=max_bytes)))
        names.append(path.name)
        files = [file for file in files if ".csv" not in file.suffixes]
    for file, trace in zip(files, _read_each(files, partial=partial, max_bytes=max_bytes, cache=cache), strict=True):
        if trace is None:
            skipped.append(file.name)
            continue
        traces.append(trace)
        names.append(file.name)
    if not traces:
        raise InputError(
            f"The directory {path} has no trace of a known format ({tools()}) in it: give the one with the traces."
        )
    again = repeated(traces)
    kept = [place for place in range(len(traces)) if place not in again]
    if [names[place] for place in kept] == [path.name] and not skipped:
        trace = traces[kept[0]]  # a folder format alone says its own ranks
    else:
        trace = merged([traces[place] for place in kept], [names[place] for place in kept], str(path), skipped)
    trace = clocks.with_clocks(trace, path)
    if not again:
        return trace
    meta = trace.meta | {"repeated": sorted(names[place] for place in again)}
    return replace(trace, meta=meta, unread=trace.unread | {REASON: len(again)})
