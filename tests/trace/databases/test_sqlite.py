"""A stranger's database: one sentence for each thing that can be wrong, nothing run, nothing written, no hang."""

import gzip
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from rocpd_writer import Writer

from rung.errors import InputError
from rung.trace.databases import formats as databases
from rung.trace.databases import nsys, rocpd
from rung.trace.databases import rocprof_legacy as rocprof_legacy_db
from rung.trace.databases.rocpd_statistics import kernel_statistics
from rung.trace.databases.sqlite import open_database


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with Writer(tmp_path_factory.mktemp("whole") / "t.db", views=False) as writer:
        for i in range(3000):
            writer.dispatch(f"kernel {i % 7}", i * 10, i * 10 + 5, stack=i)
            writer.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", i * 10 - 5, i * 10, stack=i)
    return writer.path.read_bytes()


def put(folder, content, name="t.db"):
    path = Path(folder) / name
    path.write_bytes(content)
    return path


def refused(path, says, **options):
    with pytest.raises(InputError, match=says) as caught:
        databases.read(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello", "not a SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 200, "damaged database"),
        (gzip.compress(b"SQLite format 3\x00" + b"\xff" * 200, mtime=0), "damaged database"),
        (gzip.compress(b"", mtime=0)[:5], "cut-off gzip"),
    ],
)
def test_what_is_no_database_is_refused_in_a_sentence(tmp_path, content, says):
    refused(put(tmp_path, content), says)


def test_missing_files_directories_and_foreign_databases_are_refused(tmp_path):
    refused(tmp_path / "none.db", "there is no file")
    refused(tmp_path, "is a directory")
    empty = tmp_path / "empty.db"
    with sqlite3.connect(empty) as db:
        db.execute("PRAGMA user_version = 1")
    refused(empty, "holds no table")
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE songs (id INTEGER)")
    refused(tmp_path / "other.db", "songs")
    for reader in (rocpd, nsys, rocprof_legacy_db):
        with pytest.raises(InputError, match="songs"):
            reader.read(tmp_path / "other.db")
        assert not reader.sniff((tmp_path / "other.db").read_bytes()[:64], tmp_path / "other.db")


def test_gzip_is_read_up_to_the_limit_and_leaves_nothing_behind(tmp_path, whole):
    path = put(tmp_path, gzip.compress(whole, mtime=0), "t.db.gz")
    assert rocpd.sniff(whole[:64], path)
    assert databases.sniff(whole[:64], path)
    assert databases.read(path).events.height == 6000
    assert kernel_statistics(path)["count"].sum() == 3000
    refused(path, "--max-bytes", max_bytes=len(whole) - 1)
    assert databases.read(path, max_bytes=len(whole)).events.height == 6000
    refused(
        put(tmp_path, gzip.compress(bytes(10**7), mtime=0), "bomb.db.gz"),
        "not a SQLite database|--max-bytes",
        max_bytes=10**6,
    )
    assert len(list(tmp_path.iterdir())) == 2


def test_a_truncated_database_says_so_and_gives_what_is_whole(tmp_path, whole):
    path = put(tmp_path, whole[: len(whole) * 2 // 3])
    assert rocpd.sniff(whole[:64], path)
    refused(path, "is cut off")
    trace = databases.read(path, partial=True)
    assert 100 < trace.events.height < 6000
    assert trace.unread["pages behind the cut"] == 1
    assert any(reason.startswith("rows behind damage in rocpd_") for reason in trace.unread)


def test_a_truncated_gzip_says_so_and_gives_what_is_whole(tmp_path, whole):
    packed = gzip.compress(whole, mtime=0)
    path = put(tmp_path, packed[: len(packed) * 2 // 3], "t.db.gz")
    refused(path, "cut-off gzip")
    trace = databases.read(path, partial=True)
    assert 100 < trace.events.height < 6000
    assert trace.unread["the rest of a cut-off gzip file"] == 1


def test_changes_in_a_wal_are_not_passed_over(tmp_path):
    path = tmp_path / "t.db"
    with Writer(path) as writer:
        writer.dispatch("k", 1, 2)
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute(f"DELETE FROM `rocpd_kernel_dispatch{writer.suffix}`")
    db.commit()
    try:
        refused(path, "t.db-wal.*wal_checkpoint")
        trace = databases.read(path, partial=True)
        assert trace.events.height == 1  # as it was before
        assert trace.unread == {"changes in the -wal file": 1}
    finally:
        db.close()
    assert databases.read(path).events.height == 0  # closing merged it
    assert [each.name for each in tmp_path.iterdir()] == ["t.db"]


def test_a_database_whose_tables_are_in_a_missing_wal_says_what_to_copy(tmp_path):
    live = tmp_path / "live.db"
    db = sqlite3.connect(live)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY)")
    db.commit()
    copied = put(tmp_path, live.read_bytes(), "copied.db")
    db.close()
    refused(copied, "copied.db-wal")


def test_a_killed_writers_journal_is_told(tmp_path, whole):
    path = put(tmp_path, whole)
    put(tmp_path, b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(2000), "t.db-journal")
    refused(path, "unfinished transaction")
    assert databases.read(path, partial=True).events.height == 6000


def test_a_database_that_is_being_written_is_locked(tmp_path, whole):
    pytest.importorskip("fcntl")
    path = put(tmp_path, whole)
    code = (
        "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\ndb.execute('BEGIN EXCLUSIVE')\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        refused(path, "is locked")
    finally:
        holder.communicate("")
    assert databases.read(path).events.height == 6000


def test_a_name_that_looks_like_a_query_is_only_a_name(tmp_path, whole):
    path = put(tmp_path, whole, "a?mode=rwc#b%20.db")
    assert databases.read(path).events.height == 6000
    assert len(list(tmp_path.iterdir())) == 1


def test_views_and_virtual_tables_are_never_read(tmp_path):
    path = tmp_path / "t.db"
    with Writer(path, views=False) as writer:
        writer.dispatch("k", 1, 2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS start FROM n"
    with sqlite3.connect(path) as db:
        db.execute(f"DROP TABLE `rocpd_region{writer.suffix}`")
        db.execute(f"CREATE VIEW `rocpd_region{writer.suffix}` AS {endless}")
        db.execute("CREATE VIRTUAL TABLE rocpd_kernel_dispatch_more USING fts5(start)")
    assert databases.read(path).events.height == 1  # at all: the view has no end


def test_an_open_database_runs_nothing_but_plain_queries(tmp_path, whole):
    path = put(tmp_path, whole)
    with open_database(path) as database:
        connection = database._connection
        for query in (
            "PRAGMA journal_mode = WAL",
            "ATTACH ':memory:' AS other",
            "CREATE TEMP TABLE t (i)",
            "SELECT load_extension('evil')",
            "SELECT randomblob(1000000000)",
            f'DELETE FROM "{database.tables[0]}"',
        ):
            with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
                connection.execute(query)
    assert [each.name for each in tmp_path.iterdir()] == ["t.db"]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("table", ["rocpd_kernel_dispatch", "rocpd_hip_event"])  # one is read, the other counted
def test_pages_that_share_their_children_end_in_a_sentence(tmp_path, table):
    """Six pages, each pointing sixty times at the next: 60 ** 5 rows for whoever walks them all."""
    page, depth, fan = 512, 6, 60
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA page_size = {page}")
        db.execute("CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY)")
        db.execute(f'CREATE TABLE {table} (start INTEGER, "end" INTEGER)')
        db.execute("INSERT INTO " + table + " VALUES (1, 2)")
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()[0]
    content = bytearray(path.read_bytes())
    leaf = bytes(content[(root - 1) * page : root * page])
    first = len(content) // page + 1
    inner = []
    for level in range(depth):
        child = first + level
        cells = b"".join(child.to_bytes(4, "big") + b"\x01" for _ in range(fan))
        start = page - len(cells)
        pointers = b"".join((start + 5 * i).to_bytes(2, "big") for i in range(fan))
        header = b"\x05\0\0" + fan.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0" + child.to_bytes(4, "big")
        inner.append((header + pointers).ljust(start, b"\0") + cells)
    content[(root - 1) * page : root * page] = inner[0]
    content += b"".join([*inner[1:], leaf])
    content[28:32] = (len(content) // page).to_bytes(4, "big")
    path.write_bytes(content)
    for reads in (rocpd.read, kernel_statistics) if table == "rocpd_kernel_dispatch" else (rocpd.read,):
        with pytest.raises(InputError, match="damaged"):
            reads(path)
    databases.read(path, partial=True)  # at all: such a walk takes hours


@pytest.mark.parametrize("seed", range(4))
def test_mutated_databases_are_read_or_refused(tmp_path, seed):
    """No crash, no hang, no other error, whatever bytes are changed."""
    with Writer(tmp_path / "whole.db", views=bool(seed % 2), gpus=1) as writer:
        for i in range(20):
            writer.dispatch(f"kernel {i % 3}", i * 10, i * 10 + 5, stack=i, counters=[("SQ_WAVES", i)])
            writer.region("MARKER_CORE_RANGE_API", "roctx", i, i + i % 2, message=f"step {i}")
        writer.copy("MEMORY_COPY_HOST_TO_DEVICE", 1, 2, size=3)
        writer.allocation("ALLOC", "REAL", 1, 2, size=3)
    content = writer.path.read_bytes()
    used = [i for i, byte in enumerate(content) if byte]
    dice, outcomes = random.Random(seed), {"read": 0, "refused": 0}
    path = tmp_path / "t.db"
    for _ in range(40):
        changed = bytearray(content)
        for _ in range(dice.choice((1, 3, 30))):
            where = dice.choice(used) if dice.random() < 0.8 else dice.randrange(len(changed))
            changed[where] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        if dice.random() < 0.2:
            del changed[dice.randrange(len(changed)) :]
        path.write_bytes(changed)
        try:
            databases.read(path, partial=dice.random() < 0.5)
            outcomes["read"] += 1
        except InputError:
            outcomes["refused"] += 1
    assert outcomes["read"] > 2
    assert outcomes["refused"] > 2
