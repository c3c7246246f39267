"""Opens a stranger's SQLite database: nothing in it runs, nothing is written beside it, its damage is told.

Only plain tables are read. A view or a virtual table is code of whoever wrote the file, so they are not even listed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rung.errors import InputError
from rung.runs import temporary_folder
from rung.trace.databases.columns import Database
from rung.trace.source import Source, is_packed
from rung.trace.source import head as unpacked_head

MAGIC = b"SQLite format 3\x00"
_BLOCK = 1 << 20
_SAID = 120  # characters of an error of SQLite
_PENDING_BYTE = 0x40000000  # where every SQLite places its locks, whatever the page size
_ALLOWED_FUNCTIONS = frozenset({"count", "group_concat", "max", "min", "sum", "ifnull"})


def is_sqlite(head: bytes) -> bool:
    """Whether these are the first bytes of a SQLite database."""
    return head.startswith(MAGIC)


def mentions(head: bytes, path: Path, *tables: str) -> bool:
    """Whether the database has a table whose name begins with one of `tables`, also where it is too damaged to open.

    head: its first bytes, unpacked.
    """
    if not is_sqlite(head):
        return False
    if not is_packed(path):
        with suppress(InputError), open_database(path) as database:
            return any(name.startswith(tables) for name in database.tables)
    start = unpacked_head(path, 4 * _BLOCK)
    return any(word + table.encode() in start for table in tables for word in (b"TABLE ", b'TABLE "', b"TABLE `"))


@contextmanager
def open_database(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Iterator[Database]:
    """The database at `path`, read-only; a gzip one through a temporary file of at most `max_bytes`.

    partial: read what is whole of a truncated database or of one whose last changes were not merged.
    Raises InputError, also for what turns out while the database is read.
    """
    with temporary_folder("rung-") as folder:
        plain, warnings = _plain_file(path, Path(folder), max_bytes, partial)
        warnings += _check(path, plain, partial)
        if partial:
            plain = _padded(plain, Path(folder))
        # immutable: SQLite takes no lock, looks for no journal and so creates no file. `?` and `#` are escaped.
        uri = f"{plain.resolve().as_uri()}?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise InputError(f"{path} could not be opened ({error}): check its permissions.") from None
        try:
            _harden(connection)
            yield Database(connection, path, plain.stat().st_size, partial, warnings)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from a column's name
            # Where the list of its tables is damaged, nothing is whole.
            hint = "" if partial else ", or read what is whole of it with --partial"
            raise InputError(
                f"{path} is a damaged database ({_brief(error)}): copy or record it again{hint}."
            ) from None
        finally:
            connection.close()


def _brief(error: Exception) -> str:
    """What SQLite says, in one line: of a damaged schema it shows all that follows the damage."""
    said = " ".join(str(error).split())
    return said if len(said) <= _SAID else said[:_SAID] + "…"


def _harden(connection: sqlite3.Connection) -> None:
    for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_authorizer(_authorize)


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Lets a query read columns and call a handful of functions: no PRAGMA, ATTACH, or write of any kind."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _ALLOWED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _plain_file(path: Path, folder: Path, max_bytes: int | None, partial: bool) -> tuple[Path, list[str]]:
    """The file itself, or what is packed in it as a file in `folder`; and what is missing of it."""
    if not is_packed(path):
        return path, []
    source, plain = Source(path, partial=partial, max_bytes=max_bytes), folder / "plain.db"
    try:
        with plain.open("wb") as out:
            out.writelines(source)
    except OSError as error:
        raise InputError(
            f"{path} could not be unpacked into {folder} ({error.strerror}): let TMPDIR name a larger disk."
        ) from None
    return plain, ["the rest of a cut-off gzip file"] if source.cut else []


def _check(path: Path, plain: Path, partial: bool) -> list[str]:
    """What can be wrong with the file as a whole; a sentence as an error, or what to count where it is read anyway."""
    size = plain.stat().st_size
    if not size:
        raise InputError(f"{path} is empty: record the trace again.")
    with plain.open("rb") as file:
        header = file.read(100)
    if not header.startswith(MAGIC):
        raise InputError(f"{path} is not a SQLite database: give a rocpd, rocprof or Nsight Systems database.")
    if _is_locked(plain):
        raise InputError(f"{path} is locked by a process that is writing it: read it when that has ended.")
    problems = []
    if _size(f"{plain}-wal") > 32:
        problems.append(
            ("changes in the -wal file", f"{path} has changes in {path.name}-wal that are not merged yet: end the"
             f" process that writes it, or run `sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'` on a copy of both")
        )  # fmt: skip
    if _size(f"{plain}-journal") > 512:
        problems.append(
            ("the state before an unfinished transaction", f"{path} has an unfinished transaction in"
             f" {path.name}-journal, its writer was killed: open a copy of both with `sqlite3` once to roll it back")
        )  # fmt: skip
    if size < (expected := _expected_size(header)):
        problems.append(
            ("pages behind the cut", f"{path} is cut off ({size:,} of {expected:,} bytes): copy or record it again")
        )
    if problems and not partial:
        raise InputError(f"{problems[0][1]}, or read what is whole of it with --partial.")
    return [what for what, _ in problems]


def _expected_size(header: bytes) -> int:
    """What the header says the file's size is, 0 where that cannot be relied on."""
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    # The number of pages only counts where two change counters agree: old writers did not keep it.
    known = header[24:28] == header[92:96] and 512 <= page <= 65536 and not page & (page - 1)
    return page * int.from_bytes(header[28:32], "big") if known else 0


def _padded(plain: Path, folder: Path) -> Path:
    """A copy of a cut-off database at its full size: SQLite opens no other, and finds the missing pages damaged."""
    with plain.open("rb") as file:
        expected = _expected_size(file.read(100))
    size = plain.stat().st_size
    if not size < expected <= 100 * size:  # a header that is damaged itself
        return plain
    copy = folder / "padded.db"
    shutil.copyfile(plain, copy)
    os.truncate(copy, expected)
    return copy


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _is_locked(path: Path) -> bool:
    """Whether another process holds a writer's lock; asked of the system, since immutable opening asks nobody."""
    try:
        import fcntl
    except ImportError:  # Windows refuses to open such a file instead
        return False
    with path.open("rb") as file:
        try:
            # Pending and reserved bytes, then the range that an exclusive lock takes.
            for start, length in ((_PENDING_BYTE, 2), (_PENDING_BYTE + 2, 510)):
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
                fcntl.lockf(file, fcntl.LOCK_UN, length, start)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:  # a file system without locks
            return False
    return False
