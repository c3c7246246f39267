"""The history: what was run and measured before, in one SQLite file in the user's data directory.

Many commands may write at once: the file is in WAL mode, a writer takes its turn by BEGIN IMMEDIATE and waits up to BUSY seconds for it.
Making the file, migrating it and setting it aside are done under a lock beside it, by one process at a time. `PRAGMA user_version` counts
the MIGRATIONS that a file has; one with more than these was written by a newer Rung and is left alone. A damaged file is renamed, and
a new one begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from rung.errors import InputError, UsageError
from rung.records.history import Entry
from rung.runs.data import data_directory
from rung.runs.store import to_json

log = logging.getLogger(__name__)

BUSY = 30.0  # seconds
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
_COLUMNS = ("created", "command_kind", "target", "status", "answer", "command", "host", "device", "folder", "directory", "environment", "document")  # fmt: skip
_FIGURES = ("name", "target", "options", "variant", "unit", "value", "low", "high")
_TABLES = {"entries", "measured", "tags"}
T = TypeVar("T")


def history_file() -> Path:
    return data_directory() / "history.sqlite"


class _Damaged(Exception):
    """The file is no history, or is damaged."""


class History:
    """The entries of one file. Every method opens it for itself, and raises InputError where it cannot be read or written."""

    def __init__(self, path: Path | None = None, say: Callable[[str], object] = log.warning) -> None:
        """say: is told of a file that was set aside."""
        self.path = path or history_file()
        self._say = say

    def add(self, entry: Entry) -> int:
        """Keeps an entry; its number. A run directory that goes on has one entry, which keeps its number and tags."""
        values = [entry.created, entry.of, entry.target, entry.status, entry.answer, entry.command, entry.host, entry.device,
                  entry.folder, entry.directory, _json(entry.environment or {}), _json(entry.document or {})]  # fmt: skip

        def write(db: sqlite3.Connection) -> int:
            same = "SELECT id FROM entries WHERE directory = ? AND created = ? AND command_kind = ?"
            found = db.execute(same, (entry.directory, entry.created, entry.of)).fetchone()
            if found:
                number = int(found[0])
                db.execute(f"UPDATE entries SET {' = ?, '.join(_COLUMNS)} = ? WHERE id = ?", (*values, number))
                db.execute("DELETE FROM measured WHERE entry = ?", (number,))
            else:
                marks = ", ".join("?" * len(_COLUMNS))
                number = (
                    db.execute(f"INSERT INTO entries ({', '.join(_COLUMNS)}) VALUES ({marks})", values).lastrowid or 0
                )
            db.executemany(
                f"INSERT INTO measured (entry, {', '.join(_FIGURES)}) VALUES ({', '.join('?' * (1 + len(_FIGURES)))})",
                [(number, m.name, m.target, _json(m.options), _json(m.variant), m.unit, m.value, m.low, m.high)
                 for m in entry.measured],
            )  # fmt: skip
            return number

        return self._write(write)

    def entries(self, *, of: str = "", tag: str = "", most: int | None = None, documents: bool = False) -> list[Entry]:
        """Newest first. of: a command; tag: only those that have it; documents: with environment and document."""
        where, values = ["1"], list[Any]()
        if of:
            where, values = [*where, "command_kind = ?"], [*values, of]
        if tag:
            where, values = [*where, "id IN (SELECT entry FROM tags WHERE tag = ?)"], [*values, tag]
        end = f"WHERE {' AND '.join(where)} ORDER BY created DESC, id DESC LIMIT ?"
        return self._read(
            lambda db: _entries(db, end, [*values, -1 if most is None else most], documents), list[Entry]()
        )

    def entry(self, reference: str) -> Entry:
        """The entry of a number; or the newest that has a tag. Raises UsageError where there is none."""
        by, value = ("id = ?", int(reference)) if _is_number(reference) else ("id IN (SELECT entry FROM tags WHERE tag = ?)", reference)  # fmt: skip
        end = f"WHERE {by} ORDER BY created DESC, id DESC LIMIT 1"
        found = self._read(lambda db: _entries(db, end, [value], True), list[Entry]())
        if not found:
            what = f"entry {reference}" if _is_number(reference) else f"entry with the tag {reference!r}"
            raise UsageError(f"there is no {what} in the history; `rung runs list` shows what there is.")
        return found[0]

    def tag(self, number: int, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Gives tags to an entry, and takes some away."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(number, tag) for tag in add])
            db.executemany("DELETE FROM tags WHERE entry = ? AND tag = ?", [(number, tag) for tag in remove])

        self._write(write)

    def remove(self, numbers: Sequence[int]) -> None:
        self._write(lambda db: db.executemany("DELETE FROM entries WHERE id = ?", [(n,) for n in numbers]))

    # ---- the file ------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does the work in one transaction: all of it is kept, or nothing."""

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
    _entries(db, "", [], True)


def _set_aside(path: Path) -> Path:
    """Renames the file, and what SQLite has beside it."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    os.replace(path, aside)
    for end in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    return aside


def _entries(db: sqlite3.Connection, end: str, values: Sequence[Any], documents: bool) -> list[Entry]:
    columns = _COLUMNS if documents else _COLUMNS[:-2]
    rows = db.execute(f"SELECT id, {', '.join(columns)} FROM entries {end}", values).fetchall()
    found = {row[0]: dict(zip(("id", *columns), row, strict=True)) for row in rows}
    chosen = found if len(found) <= 500 else None  # of many, all are read: SQLite takes no list of any length
    only = f"WHERE entry IN ({', '.join('?' * len(chosen))})" if chosen is not None else ""
    for number, tag in db.execute(f"SELECT entry, tag FROM tags {only} ORDER BY tag", list(chosen or ())):
        if number in found:
            found[number].setdefault("tags", []).append(tag)
    query = f"SELECT entry, {', '.join(_FIGURES)} FROM measured {only} ORDER BY rowid"
    for number, *figures in db.execute(query, list(chosen or ())):
        if number in found:
            figure = dict(zip(_FIGURES, figures, strict=True))
            found[number].setdefault("measured", []).append(figure)
    whole = []
    for known in found.values():
        with contextlib.suppress(ValueError, TypeError, msgspec.ValidationError):  # what is damaged is passed over
            whole.append(_entry(known))
    return whole


def _entry(values: dict[str, Any]) -> Entry:
    values["of"] = values.pop("command_kind")
    for name in ("environment", "document"):
        if name in values:
            values[name] = json.loads(values[name])
    for one in values.get("measured", []):
        one |= {name: json.loads(one[name]) for name in ("options", "variant")}
    return msgspec.convert(values | {"kind": "entry"}, Entry)


def _json(value: Any) -> str:
    return to_json(value).rstrip("\n")


def _is_number(reference: str) -> bool:
    return reference.isascii() and reference.isdigit() and len(reference) < 19
