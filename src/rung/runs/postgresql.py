"""The history in a PostgreSQL database that several machines share, through SQLAlchemy.

All is in a schema of its own, `rung`. A writer takes its turn by a lock on the table of entries and waits up to BUSY seconds for it; one that finds all
connections taken tries again for as long. The schema is made and migrated under an advisory lock, by one process at a time. The table `version`
counts the MIGRATIONS that it has; one with more than these was written by a newer Rung and is left alone.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rung.errors import InputError, RungError, UsageError, first_line
from rung.runs.history import BUSY, Database, History, Rows, T

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCHEMA = "rung"
LOCK = 0x52756E67  # "Rung", of the schema
_FULL = (
    "too many clients",
    "connection slots",
    "too many connections",
)  # what a server says that has no connection left
# One step a version, never changed once released. Texts are ordered by their bytes, as in SQLite; `rowid` is what SQLite gives by itself.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE entries (
            id BIGSERIAL PRIMARY KEY,  -- never given twice
            created TEXT COLLATE "C" NOT NULL,
            command_kind TEXT NOT NULL,
            target TEXT NOT NULL,
            status TEXT NOT NULL,
            answer TEXT NOT NULL,
            command TEXT NOT NULL,
            host TEXT NOT NULL,
            device TEXT NOT NULL,
            folder TEXT NOT NULL,
            directory TEXT,
            environment TEXT NOT NULL,
            document TEXT NOT NULL
        )""",
        """CREATE TABLE measured (
            rowid BIGSERIAL PRIMARY KEY,
            entry BIGINT NOT NULL REFERENCES entries ON DELETE CASCADE,
            name TEXT NOT NULL,
            target TEXT NOT NULL,
            options TEXT NOT NULL,
            variant TEXT NOT NULL,
            unit TEXT NOT NULL,
            value DOUBLE PRECISION NOT NULL,
            low DOUBLE PRECISION,
            high DOUBLE PRECISION
        )""",
        """CREATE TABLE tags (
            entry BIGINT NOT NULL REFERENCES entries ON DELETE CASCADE,
            tag TEXT COLLATE "C" NOT NULL,
            PRIMARY KEY (entry, tag)
        )""",
        "CREATE INDEX measured_entry ON measured (entry)",
        "CREATE INDEX entries_directory ON entries (directory)",
    )
]


class PostgresqlHistory(History):
    """The entries of one database."""

    shared = True
    # The sequence of entries was used last: that of `measured` comes later.
    _NEWEST = "SELECT lastval()"

    def __init__(self, url: str) -> None:
        """url: as in postgresql://USER@HOST/DATABASE. A password is better in ~/.pgpass. Raises UsageError where it is no such URL, or the
        libraries are missing."""
        try:
            import psycopg  # noqa: F401
            from sqlalchemy import create_engine
            from sqlalchemy.engine import make_url
            from sqlalchemy.exc import SQLAlchemyError
            from sqlalchemy.pool import NullPool
        except ImportError:
            raise UsageError("a store in PostgreSQL needs SQLAlchemy and psycopg: pip install 'rung[postgresql]'.") from None  # fmt: skip
        try:
            place = make_url(url)
        except (SQLAlchemyError, ValueError):
            place = None
        if place is None or place.drivername not in ("postgresql", "postgres"):
            raise UsageError("a store is given as postgresql://USER@HOST/DATABASE; without one it is a file of your own.")  # fmt: skip
        self.name = place.render_as_string(hide_password=True)
        options = {"options": f"-c search_path={SCHEMA} -c lock_timeout={int(BUSY)}s", "connect_timeout": 10}
        self._engine = create_engine(
            place.set(drivername="postgresql+psycopg"), poolclass=NullPool, connect_args=options
        )

    def _write(self, work: Callable[[Database], T]) -> T:
        with self._refused("written"), self._connected() as connection:
            if _version(connection) < len(MIGRATIONS):
                _migrate(connection)
            with connection.begin():
                connection.exec_driver_sql("LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE")
                return work(_Statements(connection))

    def _read(self, work: Callable[[Database], T], nothing: T) -> T:
        with self._refused("read"), self._connected() as connection:
            version = _version(connection)
            if not version:
                return nothing
            if version < len(MIGRATIONS):
                _migrate(connection)
            with connection.begin():
                connection.exec_driver_sql(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
                )  # one moment for all tables
                return work(_Statements(connection))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        from sqlalchemy.exc import OperationalError

        until = time.monotonic() + BUSY
        while True:
            try:
                connection = self._engine.connect()
                break
            except OperationalError as error:
                if time.monotonic() > until or not any(said in str(error) for said in _FULL):
                    raise
                time.sleep(random.uniform(0.02, 0.2))
        with connection:
            yield connection

    @contextlib.contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except RungError:
            raise
        except _Newer:
            raise InputError(f"the history {self.name} was written by a newer Rung than this one: use that, or another store.") from None  # fmt: skip
        except SQLAlchemyError as error:
            said = first_line(getattr(error, "orig", None) or error)
            raise InputError(f"the history {self.name} could not be {what}: {said}; see that the server runs and lets you in.") from error  # fmt: skip


class _Newer(Exception):
    """The schema has migrations that this Rung does not know."""


class _Statements:
    """A connection that takes statements as SQLite does."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        found: Rows = self._connection.exec_driver_sql(statement.replace("?", "%s"), tuple(map(_storable, values)))
        return found

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self.execute(statement, row)


def _storable(value: Any) -> Any:
    """PostgreSQL has no place for a NUL in a text."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _version(connection: Connection) -> int:
    """How many migrations the schema has. Raises _Newer."""
    with connection.begin():
        if connection.exec_driver_sql("SELECT to_regclass('version')").scalar() is None:
            return 0
        version = int(connection.exec_driver_sql("SELECT number FROM version").scalar() or 0)
    if version > len(MIGRATIONS):
        raise _Newer
    return version


def _migrate(connection: Connection) -> None:
    with connection.begin():
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS version (number INTEGER NOT NULL)")
        done = connection.exec_driver_sql("SELECT number FROM version").scalar()
        if done is None:
            connection.exec_driver_sql("INSERT INTO version VALUES (0)")
        for step in MIGRATIONS[int(done or 0) :]:
            for statement in step:
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"UPDATE version SET number = {len(MIGRATIONS)}")
