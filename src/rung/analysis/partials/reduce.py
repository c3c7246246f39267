"""Traces to partials: only those that are not there yet, in processes beside each other, each written as soon as it is done."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

import rung
from rung.analysis.partials.table import ENDING, VERSION, facts_in, partial_of, unreadable
from rung.errors import InputError
from rung.hardware.limits import free_memory, usable_cores
from rung.runs import temporary_folder
from rung.trace import entries
from rung.trace.clocks import NAME as CLOCKS
from rung.trace.clocks import with_clocks
from rung.trace.open import read_one
from rung.trace.output import whole
from rung.trace.parallel import answers

log = logging.getLogger(__name__)

# Gives for each file its partial, None where it is no trace, or an exception; in any order.
Engine = Callable[[Sequence[Path], dict[str, Any]], Iterator[tuple[Path, Any]]]

FUNCTION = f"{__name__}:reduced"
LIMIT = 20_000  # partials in the cache: about a gigabyte
PACKED = 10  # to one, by gzip
# What a process needs for a byte of a trace, and for none: memory, and seconds. From how many seconds on processes are worth their start.
_BYTES, _BYTES_MORE = 0.6, 200e6
_SECONDS, _SECONDS_MORE, WORTHWHILE = 2.5e-8, 0.03, 2.0
_one_at_a_time = threading.Lock()


def reduced(file: Path, *, partial: bool = False, max_bytes: int | None = None) -> bytes | None:
    """The partial of a trace, as the content of a Parquet file; None where the file is no trace of a known format. A file that cannot be
    read has one, too, which says why."""
    state = state_of(file, partial, max_bytes)
    with _one_at_a_time:  # analyses remember their answers for one trace; a worker of Dask may have several threads
        try:
            trace = read_one(file, partial=partial, max_bytes=max_bytes, cache=False)
            return None if trace is None else partial_of(with_clocks(trace, file.parent), file.name, state)
        except (InputError, OSError) as error:
            return unreadable(file.name, state, str(error))


def state_of(file: Path, partial: bool = False, max_bytes: int | None = None) -> str:
    """What changes when the trace does, or what this program makes of it, asked like this."""
    try:
        facts = file.stat()
    except OSError:  # the reader says it
        return ""
    own, beside = Path(os.environ.get("RUNG_CATEGORIES", "")), file.parent / CLOCKS
    changes = entries.state(own), entries.state(beside)
    return entries.digest(VERSION, program(), facts.st_size, facts.st_mtime_ns, *changes, partial, max_bytes)


@cache
def program() -> str:
    """What changes when this program does, and is the same on every machine."""
    root = Path(rung.__file__).parent
    files = sorted(file for ending in ("py", "toml") for file in root.rglob(f"*.{ending}"))
    return entries.digest(
        rung.__version__, pl.__version__, *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    )


def reduce(
    files: Sequence[Path],
    folder: Path,
    engine: Engine | None = None,
    *,
    partial: bool = False,
    max_bytes: int | None = None,
) -> list[Path]:
    """The partials of these traces in a folder, by the names of the traces; those that are there and hold are left as they are.

    engine: where the work is done (default: processes of this machine). partial: of a damaged trace what is whole before the damage.
    max_bytes: refuse a trace that unpacks to more. Raises InputError where a partial cannot be written.
    """
    places = {file: folder / place(file) for file in files}
    due = [file for file in files if not _holds(places[file], state_of(file, partial, max_bytes))]
    if len(due) < len(files):
        log.info("%d of %d traces are reduced already", len(files) - len(due), len(files))
    how = {"partial": partial, "max_bytes": max_bytes}
    for number, (file, answer) in enumerate((engine or in_processes)(due, how), 1):
        log.info("reduced %d of %d traces", number, len(due))
        if isinstance(answer, BaseException):
            answer = unreadable(file.name, "", str(answer) or type(answer).__name__)
        if answer is None:
            del places[file]
        else:
            with whole(places[file]) as written:
                written.write(answer)
    return list(places.values())


def in_processes(files: Sequence[Path], how: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The work done on this machine, in as many processes as it has cores and memory for."""
    processes = processes_for(files)
    if processes > 1:
        yield from zip(files, answers(FUNCTION, files, processes, how), strict=True)
    else:
        for file in files:
            yield file, reduced(file, **how)


def processes_for(files: Sequence[Path]) -> int:
    """In how many processes to reduce these, with a core and enough memory for each; 1 is this one."""
    if sum(size * _SECONDS + _SECONDS_MORE for size in _sizes(files)) < WORTHWHILE:
        return 1
    return max(1, min(usable_cores(), len(files), int(free_memory() / memory_for(files))))


def memory_for(files: Sequence[Path]) -> float:
    """Bytes that reducing the largest of these takes."""
    return max(_sizes(files)) * _BYTES + _BYTES_MORE


def _sizes(files: Sequence[Path]) -> list[int]:
    return [file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file in files]


def place(file: Path) -> str:
    """The name of a trace's partial: traces of several hosts may have one name."""
    return f"{file.name}.{entries.digest(socket.gethostname(), file.resolve())[:8]}{ENDING}"


@contextmanager
def cached(keep: bool = True) -> Iterator[Path]:
    """The folder of partials in the cache; a temporary one where nothing shall be kept, or nothing can be."""
    folder = entries.directory() / "partials"
    if keep:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            keep = os.access(folder, os.W_OK)
        except OSError:
            keep = False
    if not keep:
        with temporary_folder("rung-") as temporary:
            yield Path(temporary)
        return
    yield folder
    found = sorted(folder.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in found[LIMIT:]:
        old.unlink(missing_ok=True)


def _holds(place: Path, state: str) -> bool:
    if not place.is_file():
        return False
    try:
        facts = facts_in(place)
    except InputError:
        return False
    return not facts.problem and facts.state == state
