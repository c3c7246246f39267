"""The history: what was run and measured before, and what is asked of it. It is in a file of the user's (`sqlite.py`), or in a database that
several machines share (`postgresql.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from rung.errors import UsageError
from rung.records.history import Entry
from rung.runs.store import to_json

log = logging.getLogger(__name__)

BUSY = 30.0  # seconds that a command waits for others
_COLUMNS = ("created", "command_kind", "target", "status", "answer", "command", "host", "device", "folder", "directory", "environment", "document")  # fmt: skip
_FIGURES = ("name", "target", "options", "variant", "unit", "value", "low", "high")
T = TypeVar("T")


class Rows(Protocol):
    """What a statement gives."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection. In a statement, ? stands for a value."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Rows: ...
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object: ...


def open_history(store: str | None = None, say: Callable[[str], object] = log.warning) -> History:
    """The history that the user has chosen.

    Args:
        store: The URL of a database; None takes that of RUNG_STORE, else the user's own file.
        say: Is told of a file that was set aside.

    Raises:
        UsageError: There is no such kind of store, or what it needs is not installed.
    """
    if url := store or os.environ.get("RUNG_STORE"):
        from rung.runs.postgresql import PostgresqlHistory

        return PostgresqlHistory(url)
    from rung.runs.sqlite import SqliteHistory

    return SqliteHistory(say=say)


class History(ABC):
    """The entries of one store. name: as users know it; shared: whether machines with other disks write to it. Every method opens the store for itself, and raises InputError where it cannot be read
    or written."""

    name: str
    shared: ClassVar[bool] = False
    _NEWEST: ClassVar[str]  # asks for the number of the row that was just inserted

    def add(self, entry: Entry) -> int:
        """Keeps an entry; its number. A run directory that goes on has one entry, which keeps its number and tags."""
        values = [entry.created, entry.of, entry.target, entry.status, entry.answer, entry.command, entry.host, entry.device,
                  entry.folder, entry.directory, _json(entry.environment or {}), _json(entry.document or {})]  # fmt: skip

        def write(db: Database) -> int:
            same = "SELECT id FROM entries WHERE directory = ? AND created = ? AND command_kind = ?"
            known = [entry.directory, entry.created, entry.of]
            if self.shared:  # else the host may have got another name, as containers do
                same, known = f"{same} AND host = ?", [*known, entry.host]
            found = db.execute(same, known).fetchone()
            if found:
                number = int(found[0])
                db.execute(f"UPDATE entries SET {' = ?, '.join(_COLUMNS)} = ? WHERE id = ?", (*values, number))
                db.execute("DELETE FROM measured WHERE entry = ?", (number,))
            else:
                marks = ", ".join("?" * len(_COLUMNS))
                db.execute(f"INSERT INTO entries ({', '.join(_COLUMNS)}) VALUES ({marks})", values)
                number = int(db.execute(self._NEWEST).fetchone()[0])
            db.executemany(
                f"INSERT INTO measured (entry, {', '.join(_FIGURES)}) VALUES ({', '.join('?' * (1 + len(_FIGURES)))})",
                [(number, m.name, m.target, _json(m.options), _json(m.variant), m.unit, m.value, m.low, m.high)
                 for m in entry.measured],
            )  # fmt: skip
            return number

        return self._write(write)

    def entries(self, *, of: str = "", tag: str = "", most: int | None = None, documents: bool = False) -> list[Entry]:
        """Newest first. of: a command; tag: only those that have it; documents: with environment and document."""
        where, values = ["TRUE"], list[Any]()
        if of:
            where, values = [*where, "command_kind = ?"], [*values, of]
        if tag:
            where, values = [*where, "id IN (SELECT entry FROM tags WHERE tag = ?)"], [*values, tag]
        if most is not None:
            values.append(most)
        end = f"WHERE {' AND '.join(where)} ORDER BY created DESC, id DESC{'' if most is None else ' LIMIT ?'}"
        return self._read(lambda db: entries_in(db, end, values, documents), list[Entry]())

    def entry(self, reference: str) -> Entry:
        """The entry of a number; or the newest that has a tag. Raises UsageError where there is none."""
        by, value = ("id = ?", int(reference)) if _is_number(reference) else ("id IN (SELECT entry FROM tags WHERE tag = ?)", reference)  # fmt: skip
        end = f"WHERE {by} ORDER BY created DESC, id DESC LIMIT 1"
        found = self._read(lambda db: entries_in(db, end, [value], True), list[Entry]())
        if not found:
            what = f"entry {reference}" if _is_number(reference) else f"entry with the tag {reference!r}"
            raise UsageError(f"there is no {what} in the history; `rung runs list` shows what there is.")
        return found[0]

    def tag(self, number: int, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Gives tags to an entry, and takes some away."""

        def write(db: Database) -> None:
            db.executemany("INSERT INTO tags VALUES (?, ?) ON CONFLICT DO NOTHING", [(number, tag) for tag in add])
            db.executemany("DELETE FROM tags WHERE entry = ? AND tag = ?", [(number, tag) for tag in remove])

        self._write(write)

    def remove(self, numbers: Sequence[int]) -> None:
        self._write(lambda db: db.executemany("DELETE FROM entries WHERE id = ?", [(n,) for n in numbers]))

    @abstractmethod
    def _write(self, work: Callable[[Database], T]) -> T:
        """Does the work in one transaction, while no other writes: all of it is kept, or nothing."""

    @abstractmethod
    def _read(self, work: Callable[[Database], T], nothing: T) -> T:
        """Does the work. nothing: the answer where there is no store yet."""


def entries_in(db: Database, end: str, values: Sequence[Any], documents: bool) -> list[Entry]:
    """Those that the end of a statement chooses, in its order."""
    columns = _COLUMNS if documents else _COLUMNS[:-2]
    rows = db.execute(f"SELECT id, {', '.join(columns)} FROM entries {end}", values).fetchall()
    found = {row[0]: dict(zip(("id", *columns), row, strict=True)) for row in rows}
    if not found:
        return []
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
