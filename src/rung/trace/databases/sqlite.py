"""Opens a stranger's SQLite database: nothing in it runs, nothing is written beside it, its damage is told.

Only plain tables are read. A view or a virtual table is code of whoever wrote the file, so they are not even listed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rung.errors import InputError
from rung.trace.databases.columns import Database

MAGIC = b"SQLite format 3\x00"
GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20
_PENDING_BYTE = 0x40000000  # where every SQLite places its locks, whatever the page size
_ALLOWED_FUNCTIONS = frozenset({"count", "group_concat", "max", "min", "sum", "ifnull"})


def is_sqlite(head: bytes, path: Path) -> bool:
    """Whether the file is a SQLite database, plain or gzip."""
    return head.startswith(MAGIC) or (head.startswith(GZIP) and _unpacked_head(path, len(MAGIC)) == MAGIC)


def mentions(head: bytes, path: Path, *tables: str) -> bool:
    """Whether the database has a table whose name begins with one of `tables`, also where it is too damaged to open."""
    if not is_sqlite(head, path):
        return False
    if head.startswith(MAGIC):
        try:
            with open_database(path) as database:
                return any(name.startswith(tables) for name in database.tables)
        except InputError:
            pass
    try:
        start = _unpacked_head(path, 4 * _BLOCK)
    except OSError:
        return False
    return any(word + table.encode() in start for table in tables for word in (b"TABLE ", b'TABLE "', b"TABLE `"))


@contextmanager
def open_database(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Iterator[Database]:
    """The database at `path`, read-only; a gzip one through a temporary file of at most `max_bytes`.

    partial: read what is whole of a truncated database or of one whose last changes were not merged.
    Raises InputError, also for what turns out while the database is read.
    """
    with tempfile.TemporaryDirectory(prefix="rung-") as folder:
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
            raise InputError(
                f"{path} is a damaged database ({error}): copy or record it again, or read what is whole of it with"
                " --partial."
            ) from None
        finally:
            connection.close()


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
    try:
        with path.open("rb") as file:
            head = file.read(2)
        if head != GZIP:
            return path, []
        plain, warnings = folder / "plain.db", []
        with plain.open("wb") as out:
            try:
                for block in _unpacked(path):
                    if max_bytes is not None and out.tell() + len(block) > max_bytes:
                        raise InputError(
                            f"{path} unpacks to more than {max_bytes:,} bytes: raise --max-bytes to read it."
                        )
                    out.write(block)
            except (EOFError, zlib.error) as error:
                if not partial or not out.tell():
                    raise InputError(
                        f"{path} is a damaged or cut-off gzip file ({error}): copy or record it again."
                    ) from None
                warnings.append("the rest of a cut-off gzip file")
        return plain, warnings
    except FileNotFoundError:
        raise InputError(f"There is no file {path}: check the path of the trace.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory: name the database in it.") from None
    except OSError as error:
        raise InputError(f"{path} could not be read ({error.strerror}): check its permissions and disk.") from None


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


def _unpacked(path: Path) -> Iterator[bytes]:
    """The content of a gzip file in blocks; unlike the gzip module it gives all that stands before a cut."""
    stream = zlib.decompressobj(31)
    with path.open("rb") as file:
        while packed := file.read(_BLOCK):
            while packed:
                if stream.eof:  # a file may be several gzip members in a row
                    stream = zlib.decompressobj(31)
                if block := stream.decompress(packed, _BLOCK):
                    yield block
                packed = stream.unconsumed_tail or stream.unused_data.lstrip(b"\0")
    if not stream.eof:
        raise EOFError("it ends before its end mark")


def _unpacked_head(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        head = file.read(length)
    if not head.startswith(GZIP):
        return head
    found = b""
    try:
        for block in _unpacked(path):
            found += block
            if len(found) >= length:
                break
    except (EOFError, zlib.error):
        pass
    return found[:length]
