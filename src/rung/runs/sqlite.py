"""The history in one SQLite file in the user's data directory.

Many commands may write at once: the file is in WAL mode, a writer takes its turn by BEGIN IMMEDIATE and waits up to BUSY seconds for it.
Making the file, migrating it and setting it aside are done under a lock beside it, by one process at a time. `PRAGMA user_version` counts
the MIGRATIONS that a file has; one with more than these was written by a newer Rung and is left alone. A damaged file is renamed, and
a new one begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from rung.errors import InputError
from rung.runs.history import BUSY, History, T, entries_in, log
from rung.runs.store import data_directory

APPLICATION = 0x52756E67  # "Rung", in the file's header
# One step a version, never changed once released. A statement each: a script would commit in between.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE entries (
            id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: a number that was noted stays that entry's
            created TEXT NOT NULL,
            command_kind TEXT NOT NULL,
            target TEXT NOT NULL,
            status TEXT NOT NULL,
            answer TEXT NOT NULL,
            command TEXT NOT NULL,
            host TEXT NOT NULL,
            device TEXT NOT NULL,
            folder TEXT NOT NULL,
            directory TEXT,
            environment TEXT NOT NULL,             -- JSON
            document TEXT NOT NULL                 -- JSON
        )""",
        """CREATE TABLE measured (
            entry INTEGER NOT NULL REFERENCES entries ON DELETE CASCADE,
            name TEXT NOT NULL,
            target TEXT NOT NULL,
            options TEXT NOT NULL,                 -- JSON
            variant TEXT NOT NULL,                 -- JSON
            unit TEXT NOT NULL,
            value REAL NOT NULL,
            low REAL,
            high REAL
        )""",
        """CREATE TABLE tags (
            entry INTEGER NOT NULL REFERENCES entries ON DELETE CASCADE,
            tag TEXT NOT NULL,
            PRIMARY KEY (entry, tag)
        )""",
        "CREATE INDEX measured_entry ON measured (entry)",
        "CREATE INDEX entries_directory ON entries (directory)",
    )
]
_TABLES = {"entries", "measured", "tags"}


def history_file() -> Path:
    return data_directory() / "history.sqlite"


class _Damaged(Exception):
    """The file is no history, or is damaged."""


class SqliteHistory(History):
    """The entries of one file."""

    _NEWEST = "SELECT last_insert_rowid()"

    def __init__(self, path: Path | None = None, say: Callable[[str], object] = log.warning) -> None:
        """say: is told of a file that was set aside."""
        self.path = path or history_file()
        self.name = str(self.path)
        self._say = say

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            try:
                found = work(db)
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            return found

        try:
            try:
                return self._with(self._opened(), transaction)
            except _Damaged:
                return self._with(self._anew(), transaction)
        except (sqlite3.Error, OSError, _Damaged) as error:
            raise self._refused("written", error) from error

    def _read(self, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        try:
            if not self.path.exists():
                return nothing
            try:
                if os.access(self.path.parent, os.W_OK):
                    return self._with(self._opened(), work)
                return self._with(self._unchanging(), work)
            except _Damaged:
                self._anew().close()
                return nothing
        except (sqlite3.Error, OSError, _Damaged) as error:
            raise self._refused("read", error) from error

    def _with(self, db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        with contextlib.closing(db):
            try:
                return work(db)
            except sqlite3.DatabaseError as error:
                if type(error) is sqlite3.DatabaseError:  # what is derived from it tells of locks, disks and rights
                    raise _Damaged(str(error)) from error
                raise

    def _opened(self) -> sqlite3.Connection:
        """A connection to the file, made or migrated where that has to be. Raises _Damaged."""
        db = self._current()
        if db:
            return db
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            return self._current() or self._migrated()

    def _current(self) -> sqlite3.Connection | None:
        """A connection to the file, None where it is not there or has to be migrated."""
        if not self.path.exists():
            return None
        db = self._connected(str(self.path))
        if self._with_care(db, _version) == len(MIGRATIONS):
            return db
        db.close()
        return None

    def _unchanging(self) -> sqlite3.Connection:
        """In a folder that cannot be written, where WAL mode has no place for its files."""
        db = self._connected(f"file:{quote(os.path.abspath(self.path))}?mode=ro&immutable=1", uri=True)
        if self._with_care(db, _version) < len(MIGRATIONS):
            db.close()
            raise sqlite3.OperationalError("it is of an older Rung, and cannot be migrated where it is")
        return db

    def _migrated(self) -> sqlite3.Connection:
        descriptor = os.open(
            self.path, os.O_RDWR | os.O_CREAT, 0o600
        )  # commands may hold what only this user should read
        os.close(descriptor)
        db = self._connected(str(self.path))

        def migrate(db: sqlite3.Connection) -> None:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            for step in MIGRATIONS[_version(db) :]:
                for statement in step:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute("COMMIT")

        self._with_care(db, migrate)
        return db

    def _connected(self, path: str, uri: bool = False) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=BUSY, isolation_level=None, uri=uri)
        db.execute("PRAGMA foreign_keys = ON")
        return db

    def _with_care(self, db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
        """The connection is closed where the work fails."""
        try:
            return work(db)
        except BaseException as error:
            db.close()
            if type(error) is sqlite3.DatabaseError:
                raise _Damaged(str(error)) from error
            if isinstance(error, _Newer):
                raise InputError(f"{self.path} was written by a newer Rung than this one: use that, or set RUNG_DATA to another folder.") from None  # fmt: skip
            raise

    def _anew(self) -> sqlite3.Connection:
        """A new file in the place of a damaged one, which is renamed; unless another process has done so meanwhile."""
        with self._locked():
            try:
                db = self._current()
                if db:
                    self._with_care(db, _check)
                    return db
            except _Damaged as error:
                aside = _set_aside(self.path)
                self._say(
                    f"the history {self.path} is damaged ({error}): it is now {aside.name}, and a new one is begun."
                )
            return self._migrated()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Where the file system has no locks, there is none."""
        with open(self.path.with_name(f".{self.path.name}.lock"), "a") as lock:
            until = time.monotonic() + BUSY
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)
                except OSError:
                    break
            yield

    def _refused(self, what: str, error: Exception) -> InputError:
        said = error.strerror if isinstance(error, OSError) else str(error)
        return InputError(
            f"the history {self.path} could not be {what}: {said}; make room, or set RUNG_DATA to another folder."
        )


class _Newer(Exception):
    """The file has migrations that this Rung does not know."""


def _version(db: sqlite3.Connection) -> int:
    """How many migrations the file has. Raises _Damaged for what is no history, and _Newer."""
    version, application = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("user_version", "application_id")
    )
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if (tables or version) and application != APPLICATION:
        raise _Damaged("it is a database of something else")
    if version > len(MIGRATIONS):
        raise _Newer
    if version and not tables >= _TABLES:
        raise _Damaged("tables are missing")
    return version


def _check(db: sqlite3.Connection) -> None:
    """Raises _Damaged where SQLite finds a page or an index that cannot be."""
    [(said,)] = db.execute("PRAGMA quick_check(1)").fetchall()
    if said != "ok":
        raise _Damaged(said.splitlines()[-1])
    entries_in(db, "", [], True)


def _set_aside(path: Path) -> Path:
    """Renames the file, and what SQLite has beside it."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    os.replace(path, aside)
    for end in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    return aside
