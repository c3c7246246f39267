"""What every store of the history does: a file of SQLite's, and a database of PostgreSQL's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from stored import entry, postgresql_server

from rung.cli.main import main
from rung.errors import InputError, UsageError
from rung.records.history import Measured
from rung.runs.garbage import collect
from rung.runs.history import History, open_history

WRITERS = """
import os, sys
from rung.records.history import Entry
from rung.runs.history import open_history

store = open_history()
assert store.entries() == []  # what it needs is loaded once
for writer in range(100):
    if os.fork() == 0:
        break
else:
    while True:
        try:
            assert os.wait()[1] == 0
        except ChildProcessError:
            sys.exit()
store.add(Entry(created="2026-01-01T00:00:00+00:00", of="bench", target=f"{writer}", status="complete",
                answer="", command="", host="h", device="d", folder=""))
os._exit(0)  # taking a hundred interpreters apart takes longer than all else
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def variables(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Those that choose a store, an empty one. They are set."""
    chosen = {"RUNG_DATA": str(tmp_path / "data")}
    if request.param == "postgresql":
        chosen["RUNG_STORE"] = request.getfixturevalue("server")
        statements(chosen["RUNG_STORE"], "DROP SCHEMA IF EXISTS rung CASCADE")
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    return chosen


@pytest.fixture
def store(variables: dict[str, str]) -> History:
    return open_history()


@pytest.fixture
def database(server: str) -> str:
    """The URL of an empty database of PostgreSQL's."""
    statements(server, "DROP SCHEMA IF EXISTS rung CASCADE")
    return server


def statements(url: str, *texts: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text)


def test_what_is_added_is_found_again_newest_first(store: History) -> None:
    time = Measured(name="time", target="x", options={"n": "4"}, variant={"mode": "train"}, unit="ns", value=2.0, low=1.5, high=3.0)  # fmt: skip
    memory = Measured(name="memory", target="x", options={}, variant={}, unit="bytes", value=9.0)
    first = entry(measured=[time, memory], environment={"torch": "2.13"}, document={"kind": "bench", "samples": float("inf")})  # fmt: skip
    assert store.add(first) == 1
    assert store.add(entry("y", "2026-01-02T00:00:00+00:00", of="climb")) == 2
    assert [one.target for one in store.entries()] == ["y", "x"]
    assert [one.target for one in store.entries(of="bench")] == ["x"]
    assert [one.target for one in store.entries(most=1)] == ["y"]
    assert store.entries()[1].document is msgspec.UNSET
    found = store.entry("1")
    assert found.measured == [time, memory]
    assert found.environment == {"torch": "2.13"}
    assert found.document == {"kind": "bench", "samples": None}


def test_tags_name_entries_and_numbers_are_never_given_twice(store: History) -> None:
    for day in (1, 2, 3):
        store.add(entry(created=f"2026-01-0{day}T00:00:00+00:00"))
    store.tag(1, ["base", "slow"])
    store.tag(2, ["base", "base"])
    store.tag(1, remove=["slow"])
    assert store.entry("base").id == 2
    assert [one.tags for one in store.entries(tag="base")] == [["base"], ["base"]]
    store.remove([3, 2])
    assert store.entry("base").id == 1
    assert store.add(entry()) == 4
    for reference in ("3", "slow"):
        with pytest.raises(UsageError, match="rung runs list"):
            store.entry(reference)


def test_a_run_directory_that_goes_on_keeps_its_number_and_tags(store: History) -> None:
    time = Measured(name="time", target="x", options={}, variant={}, unit="ns", value=2.0)
    store.add(entry(directory="/run", status="interrupted", measured=[time]))
    store.tag(1, ["mine"])
    assert store.add(entry(directory="/run", measured=[time, time])) == 1
    [found] = store.entries()
    assert (found.status, found.tags, len(found.measured)) == ("complete", ["mine"], 2)
    assert store.add(entry(created="2026-02-01T00:00:00+00:00", directory="/run")) == 2  # another one in its place


def test_a_store_that_is_not_there_yet_is_empty(store: History) -> None:
    assert store.entries() == []
    store.remove([7])
    assert store.entries() == []


def test_texts_of_any_kind_come_back(store: History) -> None:
    text = "ü \u202e ' \" % %s ? :x \\ 🙂 " + "long" * 9999
    store.add(entry(text, command=text, answer=text, document={text: text}))
    store.tag(1, [text])
    found = store.entry(text)
    assert (found.target, found.command, found.answer, found.tags, found.document) == (text, text, text, [text], {text: text})  # fmt: skip


def test_what_fails_in_the_middle_keeps_nothing(store: History) -> None:
    store.add(entry("before"))
    bad = Measured(name="time", target="x", options={}, variant={}, unit="ns", value=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="could not be written"):
        store.add(entry("half", measured=[bad]))
    assert [one.target for one in store.entries()] == ["before"]


def test_a_hundred_processes_that_begin_the_store_together_lose_nothing(variables: dict[str, str]) -> None:
    """PostgreSQL's server here has twenty connections."""
    env = os.environ | variables
    done = subprocess.run([sys.executable, "-c", WRITERS], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found = open_history().entries()
    assert len({one.target for one in found}) == len(found) == 100


def test_of_a_run_directory_that_many_write_at_once_there_is_one_entry(store: History) -> None:
    store.add(entry("other"))
    with ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(lambda _: store.add(entry(directory="/run")), range(24)))
    assert len(set(numbers)) == 1
    assert len(store.entries()) == 2


def test_of_a_shared_store_only_entries_of_this_machine_are_collected(database: str) -> None:
    store = open_history(database)
    for host in ("elsewhere", os.uname().nodename):
        store.add(entry(host, host=host, directory="/gone/run"))
        store.add(entry(host, "2020-01-01T00:00:00+00:00", host=host, directory="/gone/run"))
    assert len(collect(store, do=True).removed) == 2
    assert {one.host for one in store.entries()} == {"elsewhere"}


def test_the_commands_use_the_store(store: History, capsys: pytest.CaptureFixture[str]) -> None:
    for day in range(1, 4):
        time = Measured(name="time", target="/x.py:f", options={}, variant={}, unit="ns", value=1e6 + day, low=1e6, high=2e6)  # fmt: skip
        store.add(entry("x.py:f", f"2026-01-0{day}T00:00:00+00:00", measured=[time], environment={"torch": str(day)}))
    for words in (["list"], ["show", "2"], ["compare", "1", "3"], ["tag", "2", "mine"], ["export", "--csv"], ["gc"], ["trend"]):  # fmt: skip
        assert main(["runs", *words]) == 0, words
    assert "x.py:f" in capsys.readouterr().out
    assert store.entry("mine").id == 2


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        act()
    return str(error.value)


def test_a_database_of_a_newer_rung_is_left_alone(database: str) -> None:
    store = open_history(database)
    store.add(entry())
    statements(database, "UPDATE rung.version SET number = 99")
    for act in (store.entries, lambda: store.add(entry())):
        assert "written by a newer Rung" in refused(act)


def test_a_migration_that_fails_leaves_the_database_as_it_was(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.runs import postgresql

    store, released = open_history(database), postgresql.MIGRATIONS
    store.add(entry("old"))
    monkeypatch.setattr(postgresql, "MIGRATIONS", [*released, ("DELETE FROM entries", "NONSENSE")])
    assert "could not be read" in refused(store.entries)
    monkeypatch.setattr(postgresql, "MIGRATIONS", [*released, ("UPDATE entries SET answer = 'migrated'",)])
    assert [one.answer for one in store.entries()] == ["migrated"]


def test_only_who_writes_makes_anything_in_the_database(database: str) -> None:
    import psycopg

    assert open_history(database).entries() == []
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regnamespace('rung')").fetchone() == (None,)


def test_a_server_that_is_not_there_is_one_sentence_without_the_password(database: str, tmp_path: Path) -> None:
    said = refused(open_history(f"postgresql://me:secret@/postgres?host={tmp_path}").entries)
    assert "could not be read: " in said
    assert "see that the server runs" in said
    assert "secret" not in said


@pytest.mark.parametrize("url", ["mysql://x/y", "history.sqlite", "postgresql", "sqlite:///x", "http://["])
def test_what_is_no_url_of_a_store_is_one_sentence(url: str) -> None:
    pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(UsageError, match="a store is given as postgresql://"):
        open_history(url)


def test_without_the_libraries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert main(["runs", "list", "--store", "postgresql://x/y"]) == 2
    assert "pip install 'rung[postgresql]'" in capsys.readouterr().err
