"""Any profile in a SQLite database: which reader it is for is told by its tables."""

from __future__ import annotations

from pathlib import Path

from rung.errors import InputError
from rung.trace.databases import nsys, rocpd, rocprof_legacy
from rung.trace.databases.columns import check_tables
from rung.trace.databases.sqlite import MAGIC, is_sqlite, open_database
from rung.trace.source import head
from rung.trace.table import Trace

_READERS = (rocpd, nsys, rocprof_legacy)


def sniff(start: bytes, path: Path) -> bool:
    """Whether the file is a SQLite database at all, by its first bytes, unpacked."""
    return is_sqlite(start)


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in a SQLite database of any profiler; one sentence for a database of none."""
    path = Path(path)
    start = head(path, len(MAGIC))
    for reader in _READERS:
        if reader.sniff(start, path):
            return reader.read(path, partial=partial, max_bytes=max_bytes)
    with open_database(path, partial=partial, max_bytes=max_bytes) as database:
        check_tables(database, False, "rocpd, rocprof or Nsight Systems database")
    raise InputError(f"{path} is of no known profiler: give a rocpd, rocprof or Nsight Systems database.")
