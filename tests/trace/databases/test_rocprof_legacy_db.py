"""results.db of the first rocprof: its six tables, with the columns that each generation of it wrote."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.trace.databases import formats as databases
from rung.trace.databases import rocprof_legacy as rocprof_legacy_db
from rung.trace.table import COUNTERS, SCHEMA

API = "BeginNs INTEGER, EndNs INTEGER, pid INTEGER, tid INTEGER, Name TEXT, args TEXT, \"Index\" INTEGER, Data TEXT, __section INTEGER, __lane INTEGER, DurationNs INTEGER"  # fmt: skip
OPS = 'BeginNs INTEGER, EndNs INTEGER, "dev-id" INTEGER, "queue-id" INTEGER, Name TEXT, pid INTEGER, tid INTEGER, "roctx-range" TEXT, "stream-id" INTEGER, "Index" INTEGER, Data TEXT, __section INTEGER, __lane INTEGER, DurationNs INTEGER'  # fmt: skip
OLD_OPS = 'BeginNs INTEGER, EndNs INTEGER, "dev-id" INTEGER, "queue-id" INTEGER, Name TEXT, "proc-id" INTEGER, tid INTEGER, "Index" INTEGER'  # fmt: skip
MARKS = 'BeginNs INTEGER, EndNs INTEGER, pid INTEGER, tid INTEGER, Name TEXT, "Index" INTEGER, __section INTEGER, __lane INTEGER'  # fmt: skip
KERN = '"Index" INTEGER, KernelName TEXT, "gpu-id" INTEGER, "queue-id" INTEGER, "queue-index" INTEGER, pid INTEGER, tid INTEGER, grd INTEGER, sig TEXT, obj TEXT, SQ_WAVES INTEGER, "TCC_HIT[0]" REAL, DispatchNs INTEGER, BeginNs INTEGER, EndNs INTEGER, CompleteNs INTEGER, DurationNs INTEGER'  # fmt: skip


def make(path, ops=OPS, **tables):
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        columns = {"OPS": ops, "COPY": ops, "HIP": API, "HSA": API, "rocTX": MARKS, "KERN": KERN}
        for table, rows in tables.items():
            db.execute(f"CREATE TABLE {table} ({columns[table]})")
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", [*row.values()])
    db.close()
    return path


def op(name="k", ts=10, dur=5, index=1, device=0, stream=0):
    span = {"BeginNs": ts, "EndNs": ts + dur, "pid": 7, "tid": 8, "Name": name, "Index": index}
    return span | {"dev-id": device, "queue-id": 3, "stream-id": stream}


def call(name="hipLaunchKernel", ts=1, dur=2, index=1):
    return {"BeginNs": ts, "EndNs": ts + dur, "pid": 7, "tid": 8, "Name": name, "Index": index}


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00<"), max_size=10)
times, lengths, ids = st.integers(0, 2**61), st.integers(0, 2**40), st.integers(0, 2**62)
events = st.lists(
    st.tuples(st.sampled_from(["OPS", "COPY", "HIP", "rocTX"]), names, times, lengths, ids, st.integers(0, 7)),
    max_size=20,
)


@given(drawn=events)
def test_any_events_are_read_back_equal(tmp_path_factory, drawn):
    tables = {name: [] for name in ("OPS", "COPY", "HIP", "rocTX")}
    expected = []
    kinds = {"OPS": "kernel", "COPY": "memcpy", "HIP": "runtime", "rocTX": "annotation"}
    for table, name, ts, dur, index, stream in drawn:
        if table in ("OPS", "COPY"):
            name = f"_{name.replace('F', 'f')}".replace("fill", "") if table == "COPY" else name
            kind = (
                "memset" if table == "COPY" and ("fill" in name.lower() or "memset" in name.lower()) else kinds[table]
            )
            tables[table].append(op(name, ts, dur, index, stream % 2, stream))
            expected.append((kind, ts, dur, name, stream % 2, stream, index))
        else:
            tables[table].append(call(name, ts, dur, index))
            expected.append((kinds[table], ts, dur, name, None, None, index if table == "HIP" else None))
    path = make(tmp_path_factory.mktemp("legacy") / "results.db", **tables)
    trace = rocprof_legacy_db.read(path)
    got = trace.events.select("kind", "ts", "dur", "name", "device", "stream", "correlation").rows()
    assert sorted(got, key=repr) == sorted(expected, key=repr)
    assert dict(trace.events.schema) == SCHEMA
    assert set(trace.events["pid"]) <= {"7"}
    assert trace.unread == {}


def test_an_old_database_names_process_and_stream_otherwise(tmp_path):
    row = {"BeginNs": 1, "EndNs": 2, "dev-id": 1, "queue-id": 3, "Name": "k", "proc-id": 9, "tid": 8, "Index": 4}
    trace = rocprof_legacy_db.read(make(tmp_path / "results.db", ops=OLD_OPS, OPS=[row]))
    assert trace.events.select("pid", "device", "stream", "correlation").rows() == [("9", 1, 3, 4)]


@pytest.mark.parametrize("hip", [True, False])
def test_gpu_work_links_to_the_calls_of_its_own_numbering(tmp_path, hip):
    tables = {"HSA": [call("hsa_signal_store", index=1)], "COPY": [op("CopyHostToDevice", index=1)]}
    if hip:
        tables["HIP"] = [call("hipMemcpy", index=1)]
    events = rocprof_legacy_db.read(make(tmp_path / "results.db", **tables)).events
    linked = dict(events.select("name", "correlation").rows())
    assert linked == {"CopyHostToDevice": 1, "hsa_signal_store": None if hip else 1} | ({"hipMemcpy": 1} if hip else {})


def test_kernels_come_from_ops_or_kern_but_not_from_both(tmp_path):
    dispatch = {"Index": 0, "KernelName": "gemm", "gpu-id": 1, "queue-id": 0, "pid": 7, "tid": 8, "SQ_WAVES": 64,
                "TCC_HIT[0]": 0.5, "BeginNs": 10, "EndNs": 30}  # fmt: skip
    alone = databases.read(make(tmp_path / "kern.db", KERN=[dispatch]))
    assert alone.events.select("kind", "name", "ts", "dur", "device", "stream").rows() == [
        ("kernel", "gemm", 10, 20, 1, 0)
    ]
    assert dict(alone.counters.schema) == COUNTERS
    assert alone.counters.select("kernel", "counter", "value", "device").rows() == [
        ("gemm", "SQ_WAVES", 64.0, 1),
        ("gemm", "TCC_HIT[0]", 0.5, 1),
    ]
    both = rocprof_legacy_db.read(make(tmp_path / "both.db", KERN=[dispatch], OPS=[op("gemm")]))
    assert both.events["ts"].to_list() == [10]
    assert both.unread == {"dispatch of KERN that OPS holds too": 1}
    assert both.counters.height == 2


def test_barriers_are_no_kernels_and_fills_no_copies(tmp_path):
    path = make(
        tmp_path / "results.db", OPS=[op('"<barrier packet>"'), op("k")], COPY=[op("FillBuffer"), op("hipMemcpyDtoH")]
    )
    assert rocprof_legacy_db.read(path).events["kind"].to_list() == ["other", "kernel", "memset", "memcpy"]


def test_rows_of_no_use_are_counted(tmp_path):
    path = make(tmp_path / "results.db", OPS=[op(dur=-1)], HIP=[call() | {"EndNs": None}])
    trace = rocprof_legacy_db.read(path)
    assert trace.events.height == 0
    assert trace.unread == {"negative duration": 1, "no readable start or duration": 1}
