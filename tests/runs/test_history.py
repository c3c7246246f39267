"""The history's file: nothing is lost between many writers, and what is old, newer, damaged or cannot be written is met as it should be."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stored import entry

from rung.errors import InputError
from rung.runs import sqlite
from rung.runs.sqlite import SqliteHistory


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


@pytest.fixture
def store(tmp_path: Path) -> SqliteHistory:
    return SqliteHistory(tmp_path / "data" / "history.sqlite")


def test_there_is_no_file_before_something_is_kept_and_it_is_the_users_alone(store: SqliteHistory) -> None:
    assert store.entries() == []
    assert not store.path.parent.exists()
    store.add(entry())
    assert store.path.stat().st_mode & 0o077 == 0
    assert store.path.parent.stat().st_mode & 0o077 == 0


def test_an_older_file_is_migrated_once_with_all_it_has(store: SqliteHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(entry("old"))
    later = ("ALTER TABLE entries ADD COLUMN note TEXT", "UPDATE entries SET note = 'migrated ' || target")
    monkeypatch.setattr(sqlite, "MIGRATIONS", [*sqlite.MIGRATIONS, later])
    store.add(entry("new"))
    assert {one.target for one in store.entries()} == {"old", "new"}
    with opened(store.path) as db:
        assert db.execute("SELECT note FROM entries ORDER BY id").fetchall() == [("migrated old",), (None,)]
        assert db.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    store: SqliteHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(entry("old"))
    released = sqlite.MIGRATIONS
    monkeypatch.setattr(sqlite, "MIGRATIONS", [*released, ("DELETE FROM entries", "NONSENSE")])
    with pytest.raises(InputError, match="could not be read"):
        store.entries()
    monkeypatch.setattr(sqlite, "MIGRATIONS", released)
    assert [one.target for one in store.entries()] == ["old"]


def test_a_newer_file_is_left_alone_in_one_sentence(store: SqliteHistory) -> None:
    store.add(entry())
    with opened(store.path) as db:
        db.execute(f"PRAGMA user_version = {len(sqlite.MIGRATIONS) + 1}")
    before = store.path.read_bytes()
    for act in (store.entries, lambda: store.add(entry())):
        with pytest.raises(InputError, match=r"written by a newer Rung than this one: use that, or set RUNG_DATA"):
            act()
    assert store.path.read_bytes() == before


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all, " * 400)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scratched(path: Path) -> None:
    """Every page but the first, which has the header and the names of the tables."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def other(path: Path) -> None:
    path.unlink()
    with opened(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")


def without_a_table(path: Path) -> None:
    with opened(path) as db:
        db.execute("DROP TABLE tags")


@pytest.mark.parametrize("damage", [garbage, cut, scratched, other, without_a_table])
@pytest.mark.parametrize("reads", [True, False])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(tmp_path: Path, damage: Callable[[Path], None], reads: bool) -> None:  # fmt: skip
    said: list[str] = []
    store = SqliteHistory(tmp_path / "history.sqlite", said.append)
    for _ in range(8):
        store.add(entry(document={"text": "x" * 500}))
    damage(store.path)
    damaged = store.path.read_bytes()
    if reads:
        assert store.entries() == []
    assert store.add(entry("after")) == 1
    assert [one.target for one in store.entries()] == ["after"]
    [aside] = tmp_path.glob("history.sqlite.damaged-*")
    assert aside.read_bytes() == damaged
    [sentence] = said
    assert "is damaged" in sentence
    assert aside.name in sentence


def test_the_log_of_a_damaged_file_that_another_process_has_open_goes_with_it(store: SqliteHistory) -> None:
    """Its pages are no part of the new file. Without others, SQLite removes it."""
    store.add(entry())
    with opened(store.path) as db:
        db.execute("UPDATE entries SET target = 'in the log alone'")
        garbage(store.path)
        store.add(entry("after"))
        assert len(list(store.path.parent.glob("history.sqlite.damaged-*-wal"))) == 1
        assert [one.target for one in store.entries()] == ["after"]


def test_a_value_that_cannot_be_read_hides_no_other_entry(store: SqliteHistory) -> None:
    store.add(entry("good"))
    store.add(entry("bad"))
    with opened(store.path) as db:
        db.execute("UPDATE entries SET environment = '{' WHERE target = 'bad'")
    assert [one.target for one in store.entries(documents=True)] == ["good"]


def unprivileged(store: Path, code: str) -> subprocess.CompletedProcess[str]:
    """In a process that may not write there, which root always may."""
    code = f"import os\nfrom pathlib import Path\nfrom rung.errors import *\nfrom rung.runs.sqlite import SqliteHistory\nif os.getuid() == 0: os.setuid(65534)\nstore = SqliteHistory(Path({str(store)!r}))\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_where_nothing_can_be_written_the_file_can_still_be_read(tmp_path: Path) -> None:
    base = tmp_path
    while base != base.parent and not base.stat().st_mode & 0o001:  # pytest's folders are the user's alone
        base.chmod(base.stat().st_mode | 0o011)
        base = base.parent
    folder = tmp_path / "read only"
    store = SqliteHistory(folder / "history.sqlite")
    store.add(entry("kept"))
    store.path.chmod(0o444)
    folder.chmod(0o555)
    try:
        done = unprivileged(store.path, "print(store.entries()[0].target)\ntry: store.tag(1, ['x'])\nexcept InputError as e: print(e)")  # fmt: skip
    finally:
        folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    target, refused = done.stdout.splitlines()
    assert target == "kept"
    assert refused.startswith(f"the history {store.path} could not be written: ")
    assert refused.endswith("; make room, or set RUNG_DATA to another folder.")


def test_a_full_disk_refuses_the_entry_and_loses_none(store: SqliteHistory) -> None:
    """A limit on the size of a file stands for the disk."""
    store.add(entry("before"))
    code = f"""
import resource
from rung.runs.sqlite import SqliteHistory
from rung.errors import InputError
from rung.records.history import Entry
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    SqliteHistory(Path({str(store.path)!r})).add(Entry(created="", of="bench", target="large", status="", answer="", command="", host="", device="", folder="", document={{"x": "y" * 10**6}}))
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "could not be written" in done.stdout, done.stderr
    assert [one.target for one in store.entries()] == ["before"]
    store.add(entry("after"))
    assert [one.target for one in store.entries()] == ["after", "before"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SqliteHistory(tmp_path / "file" / "rung" / "history.sqlite")
    assert store.entries() == []
    with pytest.raises(InputError, match="could not be written: Not a directory"):
        store.add(entry())
