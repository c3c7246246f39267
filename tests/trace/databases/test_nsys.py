"""Nsight Systems exports: tables and columns that a version lacks, ids that only count within a process."""

import sqlite3

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InputError
from rung.trace.databases import formats as databases
from rung.trace.databases import nsys
from rung.trace.table import SCHEMA

COMMON = 'start INTEGER, "end" INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER'
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "id INTEGER NOT NULL, name TEXT, busLocation TEXT, totalMemory INTEGER, smCount INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{COMMON}, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,"
    " graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{COMMON}, globalPid INTEGER, bytes INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{COMMON}, globalPid INTEGER, value INTEGER, bytes INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{COMMON}, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": 'start INTEGER, "end" INTEGER, eventClass INTEGER, globalTid INTEGER,'
    " correlationId INTEGER, nameId INTEGER, returnValue INTEGER",
    "NVTX_EVENTS": 'start INTEGER, "end" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER',
    "OSRT_API": 'start INTEGER, "end" INTEGER, eventClass INTEGER, globalTid INTEGER, nameId INTEGER',
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start INTEGER, globalPid INTEGER, deviceId INTEGER, bytes INTEGER,"
    " memoryOperationType INTEGER, correlationId INTEGER",
}


def serial(pid, tid=0, hardware=1):
    value = (hardware << 56) | (pid << 24) | tid
    return value - 2**64 if value >= 2**63 else value


class Export:
    def __init__(self, path, without=()):
        self.path = path
        self.db = sqlite3.connect(path)
        self.db.execute("PRAGMA journal_mode = OFF")
        self.db.execute("PRAGMA synchronous = OFF")
        for table, columns in TABLES.items():
            if table not in without:
                self.db.execute(f"CREATE TABLE {table} ({columns})")
        self.strings = {}

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.insert("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def insert(self, table, **values):
        names = ", ".join(f'"{name}"' for name in values)
        self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", [*values.values()])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.db.commit()
        self.db.close()


times, lengths, ids = st.integers(0, 2**61), st.integers(0, 2**40), st.integers(0, 2**40)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=10)
event = st.tuples(
    st.sampled_from(["kernel", "memcpy", "memset", "runtime", "annotation", "mark", "other", "allocation", "graph"]),
    names, times, lengths, ids, st.integers(0, 3), ids,
)  # fmt: skip


def put(export, drawn, pid, tid, hardware):
    what, name, ts, dur, correlation, stream, size = drawn
    span = {"start": ts, "end": ts + dur}
    gpu = span | {"deviceId": 0, "contextId": 1, "streamId": stream, "correlationId": correlation}
    gpu["globalPid"] = serial(pid, hardware=hardware)
    thread = {"globalTid": serial(pid, tid, hardware)}
    name_id = export.string(name)
    pids, here = (str(pid), None), (str(pid), str(tid))
    if what == "kernel":
        export.insert("CUPTI_ACTIVITY_KIND_KERNEL", **gpu, demangledName=name_id, shortName=export.string("short"))
        return ("kernel", ts, dur, name, *pids, 0, stream, correlation, None)
    if what == "graph":
        export.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **gpu, graphId=size)
        return ("kernel", ts, dur, f"CUDA graph {size}", *pids, 0, stream, correlation, None)
    if what == "memcpy":
        export.insert("CUPTI_ACTIVITY_KIND_MEMCPY", **gpu, bytes=size, copyKind=1 + size % 2)
        return ("memcpy", ts, dur, ("Memcpy HtoD", "Memcpy DtoH")[size % 2], *pids, 0, stream, correlation, size)
    if what == "memset":
        export.insert("CUPTI_ACTIVITY_KIND_MEMSET", **gpu, bytes=size, value=0)
        return ("memset", ts, dur, "Memset", *pids, 0, stream, correlation, size)
    if what == "allocation":
        export.insert(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=ts, globalPid=gpu["globalPid"], deviceId=0, bytes=size,
            memoryOperationType=stream % 2, correlationId=correlation,
        )  # fmt: skip
        shown = ("MEMORY_ALLOCATE", "MEMORY_FREE")[stream % 2]
        return ("allocation", ts, 0, shown, *pids, 0, None, correlation, size)
    if what == "runtime":
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", **span, **thread, correlationId=correlation, nameId=name_id)
        return ("runtime", ts, dur, name, *here, None, None, correlation, None)
    if what == "other":
        export.insert("OSRT_API", **span, **thread, nameId=name_id)
        return ("other", ts, dur, name, *here, None, None, None, None)
    if what == "mark":
        export.insert("NVTX_EVENTS", start=ts, end=None, eventType=34, text=name, **thread)
        return ("annotation", ts, 0, name, *here, None, None, None, None)
    spelled = {"text": name} if size % 2 else {"textId": name_id}
    export.insert("NVTX_EVENTS", **span, eventType=59, **spelled, **thread)
    return ("annotation", ts, dur, name, *here, None, None, None, None)


@given(
    drawn=st.lists(event, max_size=25),
    pid=st.integers(1, 2**24 - 1),
    tid=st.integers(1, 2**24 - 1),
    hardware=st.integers(0, 255),
)
def test_any_events_are_read_back_equal(tmp_path_factory, drawn, pid, tid, hardware):
    path = tmp_path_factory.mktemp("nsys") / "t.sqlite"
    with Export(path) as export:
        expected = [put(export, each, pid, tid, hardware) for each in drawn]
    trace = nsys.read(path)
    columns = ["kind", "ts", "dur", "name", "pid", "tid", "device", "stream", "correlation", "bytes"]
    assert sorted(trace.events.select(columns).rows(), key=repr) == sorted(expected, key=repr)
    assert dict(trace.events.schema) == SCHEMA
    assert trace.unread == {}
    assert trace.format == "nsys"


@pytest.mark.parametrize(
    "missing", [table for table in TABLES if table not in ("CUPTI_ACTIVITY_KIND_KERNEL", "StringIds")]
)
def test_no_table_but_that_of_the_kernels_is_needed(tmp_path, missing):
    path = tmp_path / "t.sqlite"
    with Export(path, without=[missing]) as export:
        put(export, ("kernel", "k", 1, 2, 3, 0, 0), 10, 11, 1)
    assert nsys.sniff(path.read_bytes()[:64], path)
    assert databases.read(path).events.select("name", "ts", "dur").rows() == [("k", 1, 2)]


def test_an_old_export_without_the_newer_columns_is_read(tmp_path):
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as db:
        db.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, "end" INT, shortName INT)')
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 9, 1)")
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.execute("INSERT INTO StringIds VALUES (1, 'gemm')")
    row = nsys.read(path).events.row(0, named=True)
    assert (row["name"], row["dur"], row["device"], row["stream"], row["correlation"]) == ("gemm", 4, None, None, None)


def test_device_zero_of_two_processes_is_two_gpus_and_their_ids_stay_apart(tmp_path):
    path = tmp_path / "t.sqlite"
    with Export(path) as export:
        for gpu in (7, 3):
            export.insert("TARGET_INFO_GPU", id=gpu, name=f"H100 number {gpu}")
        export.insert("TARGET_INFO_CUDA_DEVICE", gpuId=7, cudaId=0, pid=100)
        export.insert("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=200)
        for pid in (100, 200):
            put(export, ("kernel", f"k{pid}", 10, 5, 1, 0, 0), pid, 1, 1)
            put(export, ("runtime", "cudaLaunchKernel_v7000", 1, 5, 1, 0, 0), pid, 1, 1)
    trace = nsys.read(path)
    kernels = trace.events.filter(pl.col("kind") == "kernel")
    assert kernels.select("name", "device").rows() == [("k100", 1), ("k200", 0)]
    assert [device["id"] for device in trace.devices] == [3, 7]
    linked = kernels.join(trace.events.filter(pl.col("kind") == "runtime"), on="correlation")
    assert linked.select("pid", "pid_right", "name_right").rows() == [
        ("100", "100", "cudaLaunchKernel"),
        ("200", "200", "cudaLaunchKernel"),
    ]


def test_graph_kernels_share_the_correlation_of_their_launch(tmp_path):
    path = tmp_path / "t.sqlite"
    with Export(path) as export:
        put(export, ("runtime", "cudaGraphLaunch_v10000", 1, 5, 42, 0, 0), 1, 1, 1)
        for ts in (10, 20):
            put(export, ("kernel", "node", ts, 5, 42, 0, 0), 1, 1, 1)
        export.db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = start")
    events = nsys.read(path).events
    assert events["correlation"].to_list() == [42, 42, 42]


def test_what_is_not_read_is_counted(tmp_path):
    path = tmp_path / "t.sqlite"
    with Export(path) as export:
        put(export, ("kernel", "k", 10, -3, 1, 0, 0), 1, 1, 1)
        export.insert("NVTX_EVENTS", start=1, end=None, eventType=59, text="open", globalTid=serial(1, 1))
        export.insert("NVTX_EVENTS", start=1, end=None, eventType=75, text="a domain", globalTid=serial(1, 1))
        export.db.execute("CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER)")
        export.db.execute("INSERT INTO SCHED_EVENTS VALUES (1, 0), (2, 1)")
        export.db.execute("CREATE TABLE ENUM_NOTHING (id INTEGER)")
    trace = nsys.read(path)
    assert trace.events.height == 0
    assert trace.unread == {
        "negative duration": 1,
        "NVTX range without an end": 1,
        "NVTX event that is not a range or mark": 1,
        "row of SCHED_EVENTS": 2,
    }


def test_the_run_is_told_without_its_environment(tmp_path):
    path = tmp_path / "t.sqlite"
    with Export(path) as export:
        export.insert("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.24.14")
        export.insert("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
        export.insert("TARGET_INFO_SYSTEM_ENV", name="EnvironmentVariables", value="HF_TOKEN=hf_secret")
        export.insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1790000000000000000)
    meta = nsys.read(path).meta
    assert (meta["schema_version"], meta["host"], meta["start"]) == ("3.24.14", "node7", 1790000000000000000)
    assert "hf_secret" not in repr(meta)


def test_a_report_that_was_not_exported_is_refused(tmp_path):
    path = tmp_path / "t.nsys-rep"
    path.write_bytes(b"\x00\x01NSYS" * 40)
    with pytest.raises(InputError, match="not a SQLite database"):
        nsys.read(path)
