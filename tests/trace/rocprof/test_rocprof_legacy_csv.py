"""What the tools before rocprofv3 wrote: wide tables, statistics, a Chrome JSON in strings, rocprofv2's activity."""

import contextlib
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocprof_files import (
    DISPATCH_COLUMNS,
    chrome_text,
    counter_rows,
    csv_text,
    dispatch_rows,
    events,
    results_csv,
    write,
)

from rung.errors import InputError
from rung.trace.rocprof import legacy_csv as rocprof_legacy_csv
from rung.trace.table import COUNTERS, SCHEMA

EVENT = {
    "kind": "kernel",
    "name": "add(float*, int) [clone .kd]",
    "ts": 1411551767635712,
    "dur": 20480,
    "tid": 8,
    "device": 0,
    "stream": 2,
    "correlation": 5,
    "bytes": 64,
}


@given(events(("kernel",)), st.booleans(), st.lists(st.sampled_from(["SQ_WAVES", "TCC_HIT[3]", "TA_X_1"]), unique=True))
def test_random_dispatches_of_a_results_csv_read_back_equal(found, old, names):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {"results.csv": results_csv(found, names, old)}) / "results.csv"
        trace = rocprof_legacy_csv.read(path)
    assert trace.events.select(DISPATCH_COLUMNS).rows() == dispatch_rows(found)
    assert trace.counters.rows() == counter_rows(found, names)
    assert dict(trace.counters.schema) == COUNTERS
    assert dict(trace.events.schema) == SCHEMA
    assert trace.unread == {}


def test_without_times_the_counters_are_read_and_the_dispatches_counted(tmp_path):
    path = write(tmp_path, {"r.csv": results_csv([EVENT] * 2, ["SQ_WAVES"], timed=False)}) / "r.csv"
    trace = rocprof_legacy_csv.read(path)
    assert trace.counters["value"].to_list() == [64.0, 64.0]
    assert trace.events.height == 0
    assert trace.unread == {"dispatch without a time (recorded with --timestamp off)": 2}


def test_the_oldest_table_ends_each_line_with_a_comma(tmp_path):
    text = 'Index,KernelName,DispatchNs,BeginNs,EndNs,CompleteNs,SQ_WAVES,\n0,"k",1,10,30,40,4096,\n'
    trace = rocprof_legacy_csv.read(write(tmp_path, {"r.csv": text}) / "r.csv")
    assert trace.events.select("ts", "dur", "name").rows() == [(10, 20, "k")]
    assert trace.counters.select("counter", "value").rows() == [("SQ_WAVES", 4096.0)]


def test_statistics(tmp_path):
    text = csv_text(["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"], [["k, l", 2, 30, 15, 100.0]])
    trace = rocprof_legacy_csv.read(write(tmp_path, {"results.stats.csv": text}) / "results.stats.csv")
    assert trace.events.height == 0
    assert trace.meta["statistics"]["results.stats.csv"][0]["name"] == "k, l"


def test_activity_of_rocprofv2(tmp_path):
    titles = ["Domain", "Operation", "Kernel_Name", "Start_Timestamp", "Stop_Timestamp", "Correlation_ID"]
    rows = [
        ["HIP_API_DOMAIN", "hipLaunchKernel", "", 10, 20, 1],
        ["HIP_OPS_DOMAIN", "KernelExecution", "k(int, int)", 20, 50, 1],
        ["HIP_OPS_DOMAIN", "CopyHostToDevice", "", 60, 70, 2],
        ["ROCTX_DOMAIN", "step", "", 1, 99, 0],
        ["HIP_API_DOMAIN", "hipMemcpy", "", 20, 10, 1],
    ]
    trace = rocprof_legacy_csv.read(write(tmp_path, {"a.csv": csv_text(titles, rows)}) / "a.csv")
    assert trace.events.select("kind", "name", "ts", "dur", "correlation").rows() == [
        ("runtime", "hipLaunchKernel", 10, 10, 1),
        ("kernel", "k(int, int)", 20, 30, 1),
        ("memcpy", "CopyHostToDevice", 60, 10, 2),
        ("annotation", "step", 1, 98, 0),
    ]
    assert trace.unread == {"negative duration": 1}


@given(events(("kernel", "runtime", "annotation", "memcpy")))
def test_random_events_of_the_chrome_json_read_back_to_the_nanosecond(found):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), {"results.json": chrome_text(found)}) / "results.json"
        assert rocprof_legacy_csv.sniff(path.read_bytes(), path)
        trace = rocprof_legacy_csv.read(path)
    rows = []
    for event in found:
        on_gpu = event["kind"] == "kernel"
        kind = event["kind"]
        if on_gpu and event["name"].startswith("Copy"):
            kind = "memcpy"
        elif on_gpu and event["name"].startswith("Fill"):
            kind = "memset"
        device, stream = (event["device"], event["stream"]) if on_gpu else (None, None)
        rows.append((event["ts"], event["dur"], kind, event["name"], "5", str(event["tid"]), device, stream))
    assert trace.events.select("ts", "dur", "kind", "name", "pid", "tid", "device", "stream").rows() == rows
    assert trace.unread == {"metadata event": 1}
    assert trace.format == "rocprof-json"


def flow(phase, number, lane, tid, ts):
    return "," + json.dumps(
        {"ts": ts, "ph": phase, "cat": "DataFlow", "id": number, "pid": lane, "tid": tid, "name": "dep"}
    )


def test_flows_link_a_call_with_what_it_launched(tmp_path):
    found = [
        EVENT | {"kind": "runtime", "name": "hipLaunchKernel", "ts": 5000},
        EVENT | {"kind": "runtime", "name": "hipLaunchKernel", "ts": 5400},  # in the same microsecond
        EVENT | {"ts": 9000},
        EVENT | {"ts": 9900, "name": "CopyHostToDevice"},
    ]
    lines = chrome_text(found).split("\n],")
    flows = [flow("s", 1, 2, 8, 5), flow("t", 1, 6, 8, 9), flow("s", 2, 2, 8, 5), flow("t", 2, 6, 8, 9)]
    flows += [flow("s", 3, 2, 8, 77), flow("t", 3, 6, 8, 9)]
    path = write(tmp_path, {"r.json": "\n".join([lines[0], *flows]) + "\n]," + lines[1]}) / "r.json"
    trace = rocprof_legacy_csv.read(path)
    assert trace.events.select("kind", "correlation").rows() == [
        ("runtime", 1), ("runtime", 2), ("kernel", 1), ("memcpy", 2),
    ]  # fmt: skip
    assert trace.unread == {"metadata event": 1, "flow without its call or its GPU event": 1}


RESULTS = results_csv([EVENT, EVENT | {"name": 'a "quoted" one'}], ["SQ_WAVES"])
CHROME = chrome_text([EVENT, EVENT | {"kind": "runtime", "ts": 3}])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (RESULTS.splitlines()[0].encode(), "no rows"),
        (RESULTS[:-40].encode(), "cut-off or damaged"),
        (b"a,b\n1,2\n", "titles are others"),
        (CHROME[:-60].encode(), "cut off or damaged"),
        (b'{"traceEvents": 3}', "is not a Chrome trace of rocprof"),
        (b'{"x": 3}', "has no traceEvents"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        rocprof_legacy_csv.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_partial_reads_what_is_whole_and_counts_the_rest(tmp_path):
    path = tmp_path / "r"
    path.write_text(RESULTS[:-40])
    trace = rocprof_legacy_csv.read(path, partial=True)
    assert trace.events.height == 1
    assert trace.unread == {"row cut off at the end of the file": 1}
    path.write_text(CHROME[:-60])
    trace = rocprof_legacy_csv.read(path, partial=True)
    assert trace.events["ts"].to_list() == [EVENT["ts"]]
    assert trace.unread == {"metadata event": 1, "record cut off at the end of the file": 1}


def test_sniffing_is_by_content():
    kineto = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "args": {}}]}'
    for head in (RESULTS.encode(), CHROME[:200].encode(), b"Name,Calls,TotalDurationNs,AverageNs,Percentage\n"):
        assert rocprof_legacy_csv.sniff(head, Path("x"))
    v3 = b"Name,Calls,TotalDurationNs,AverageNs,Percentage,MinNs,MaxNs,StdDev\n"
    for head in (b"", kineto, v3, b"Kind,Agent_Id\n"):
        assert not rocprof_legacy_csv.sniff(head, Path("results.csv"))


def test_mutated_files_give_a_trace_or_a_sentence(tmp_path):
    rng = random.Random(6)
    path = tmp_path / "f"
    for whole in (RESULTS.encode(), CHROME.encode()):
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.choice(b'",:{}[]\n\x00\xff0-Ee')
            path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
            with contextlib.suppress(InputError):
                rocprof_legacy_csv.read(path, partial=rng.random() < 0.5)
