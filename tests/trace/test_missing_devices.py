"""GPU events whose file names no device for them: they are counted on the GPU that they can only be of, or as left out."""

import json
import sqlite3

import polars as pl
import pytest

from rung.analysis.overview import NO_DEVICE, completeness
from rung.analysis.timeline import timeline
from rung.trace import read

ACTIVITY = """Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID
HIP_API_DOMAIN,hipLaunchKernel,,10,20,1
HIP_OPS_DOMAIN,KernelExecution,k,20,50,1
HIP_OPS_DOMAIN,CopyHostToDevice,,60,70,2
"""
RESULTS = "Index,KernelName,BeginNs,EndNs\n0,k1,1000,2000\n1,k2,3000,5000\n"
KINETO = json.dumps({
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": "GPU 0", "tid": 7, "ts": 1.0, "dur": 2.0, "args": {"stream": 7}}
    ],
})  # fmt: skip


def only_device(trace):
    """Of a trace whose figures are those of one GPU: its device, busy and total time."""
    rows = timeline(trace).filter(pl.col("step").is_null())
    assert rows.height == 1
    return rows.select("device", "busy_ns", "total_ns").row(0)


@pytest.mark.parametrize(
    ("text", "figures"), [(ACTIVITY, (0, 40, 50)), (RESULTS, (0, 3000, 4000)), (KINETO, (0, 2000, 2000))]
)
def test_where_no_gpu_event_names_a_device_all_are_of_the_first(tmp_path, text, figures):
    path = tmp_path / "trace"
    path.write_text(text)
    trace = read(path)
    assert only_device(trace) == figures
    assert completeness(trace).filter(pl.col("what") == NO_DEVICE).is_empty()
    host = trace.events.filter(~pl.col("kind").is_in(["kernel", "memcpy"]))
    assert host["device"].null_count() == host.height


def test_a_kernel_without_a_device_beside_others_with_one_is_counted_as_left_out(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("Index,KernelName,gpu-id,BeginNs,EndNs\n0,k1,0,1000,2000\n1,k2,,3000,5000\n")
    trace = read(path)
    assert only_device(trace) == (0, 1000, 1000)
    assert completeness(trace).filter(pl.col("what") == NO_DEVICE).rows() == [(NO_DEVICE, False, 1, 2000)]


def chrome(*devices):
    """A results.json of the first rocprof, with a kernel on each of these GPUs and a copy in the lane of copies."""
    events = [{}]
    for lane, name, begin, end in [(1, "hsa_copy", 10_000, 40_000), *((6 + d, "k", 50_000, 60_000) for d in devices)]:
        args = {"BeginNs": str(begin), "EndNs": str(end), "pid": "5", "tid": "7"}
        events.append({"ph": "X", "name": name, "pid": str(lane), "tid": "7", "ts": str(begin // 1000), "args": args})
    return json.dumps({"traceEvents": events})


def test_a_copy_of_the_first_rocprof_is_of_the_only_gpu(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(chrome(2))
    assert only_device(read(path)) == (2, 40_000, 50_000)


def test_a_copy_beside_several_gpus_is_counted_as_left_out(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(chrome(0, 1))
    trace = read(path)
    assert timeline(trace)["memcpy_ns"].sum() == 0
    assert completeness(trace).filter(pl.col("what") == NO_DEVICE).rows() == [(NO_DEVICE, False, 1, 30_000)]


def test_a_copy_in_a_database_of_the_first_rocprof_is_of_the_only_gpu(tmp_path):
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as database:
        database.executescript("""
            create table OPS("BeginNs" integer, "EndNs" integer, "dev-id" integer, "queue-id" integer, "Name" text, "pid" integer,
                "tid" integer, "stream-id" integer, "Index" integer);
            create table COPY("BeginNs" integer, "EndNs" integer, "Name" text, "pid" integer, "tid" integer, "Index" integer);
            create table HIP("BeginNs" integer, "EndNs" integer, "pid" integer, "tid" integer, "Name" text, "Index" integer);
            insert into OPS values(50000, 60000, 1, 1, 'vecAdd', 5, 77, 0, 2);
            insert into COPY values(10000, 40000, 'CopyHostToDevice', 5, 0, 1);
            insert into HIP values(1000, 41000, 5, 77, 'hipMemcpy', 1);
        """)
    trace = read(path)
    assert only_device(trace) == (1, 40_000, 50_000)
    assert completeness(trace).filter(pl.col("what") == NO_DEVICE).is_empty()
