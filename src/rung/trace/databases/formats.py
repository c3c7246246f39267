"""Any profile in a SQLite database: which reader it is for is told by its tables."""

from __future__ import annotations

from pathlib import Path

from rung.errors import InputError
from rung.trace.databases import nsys, rocpd
from rung.trace.databases import rocprof_legacy as rocprof_legacy_db
from rung.trace.databases.columns import check_tables
from rung.trace.databases.sqlite import is_sqlite, open_database
from rung.trace.table import Trace

_READERS = (rocpd, nsys, rocprof_legacy_db)


def sniff(head: bytes, path: Path) -> bool:
    """Whether the file is a SQLite database at all, plain or gzip."""
    return is_sqlite(head, path)


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """The trace in a SQLite database of any profiler; one sentence for a database of none."""
    path = Path(path)
    head = _head(path)
    for reader in _READERS:
        if reader.sniff(head, path):
            return reader.read(path, partial=partial, max_bytes=max_bytes)
    with open_database(path, partial=partial, max_bytes=max_bytes) as database:
        check_tables(database, False, "rocpd, rocprof or Nsight Systems database")
    raise InputError(f"{path} is of no known profiler: give a rocpd, rocprof or Nsight Systems database.")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b""  # opening it says why
