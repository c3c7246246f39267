"""rocprofv3's JSON: every kind of record, the real MI350X file, and a sentence for whatever is wrong."""

import contextlib
import gzip
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocprof_files import FIRST_GPU_NODE, HANDLE, events, results_json, write_json

from rung.errors import InputError
from rung.trace.rocprof import v3_json as rocprofv3_json
from rung.trace.table import COUNTERS, SCHEMA

SHARED = Path(__file__).parents[4] / "shared" / "data" / "rocprofv3" / "mi350_training_results.json.gz"
COLUMNS = ("ts", "dur", "kind", "name", "tid", "device", "stream", "correlation", "bytes")
EVENT = {
    "kind": "kernel",
    "name": "void add<float>(float*, int) [x{",
    "ts": 63857982592000,
    "dur": 2840,
    "tid": 908,
    "device": 1,
    "stream": 0,
    "correlation": 5,
    "bytes": 64,
}
KINDS = [
    EVENT | {"kind": "memcpy", "name": "MEMORY_COPY_DEVICE_TO_HOST", "correlation": 6},
    EVENT | {"kind": "runtime", "name": "hipMalloc", "correlation": 7},
    EVENT | {"kind": "annotation", "name": "step 1", "correlation": 8, "dur": 0},
    EVENT | {"kind": "allocation", "name": "MEMORY_ALLOCATION_ALLOCATE", "correlation": 9},
]


@given(events(), st.booleans(), st.booleans())
def test_random_events_read_back_equal(found, stream_ids, compressed):
    with tempfile.TemporaryDirectory() as folder:
        path = write_json(Path(folder) / "r.json", results_json(found, stream_ids))
        if compressed:
            path.write_bytes(gzip.compress(path.read_bytes()))
        trace = rocprofv3_json.read(path)
    expected = []
    for event in found:
        row = {column: event[column] for column in COLUMNS} | {"tid": str(event["tid"])}
        kind = event["kind"]
        if kind in ("runtime", "annotation"):
            row["device"] = None
        if kind not in ("kernel", "memcpy") or (kind == "memcpy" and not stream_ids):
            row["stream"] = None
        if kind not in ("memcpy", "allocation"):
            row["bytes"] = None
        expected.append(tuple(row.values()))
    assert sorted(trace.events.select(COLUMNS).rows(), key=str) == sorted(expected, key=str)
    assert trace.unread == {}
    assert dict(trace.events.schema) == SCHEMA
    assert set(trace.events["pid"]) == {"77"}


@pytest.mark.skipif(not SHARED.exists(), reason="the shared recordings are not beside the project")
def test_the_real_mi350x_file():
    trace = rocprofv3_json.read(SHARED)
    assert trace.events.height == 43_915
    assert trace.events["dur"].sum() == 4_441_741_378
    assert trace.events["dur"].min() == 560
    assert trace.events["correlation"].n_unique() == 43_915
    assert set(trace.events["device"]) == {0}
    assert trace.events["stream"].value_counts(sort=True).row(0) == (567, 37_300)
    assert dict(trace.events["tid"].value_counts().iter_rows())["1229"] == 26_551
    assert not trace.events["name"].str.starts_with("_Z").any()
    assert not trace.events["name"].str.ends_with(".kd").any()
    assert [gpu["product_name"] for gpu in trace.devices] == ["AMD Instinct MI350X"] * 8
    assert trace.unread == {}
    assert trace.meta["host"] == "smci350-zts-gtu-c6-25"


def test_counters_are_summed_over_their_instances_and_join_the_dispatch(tmp_path):
    gpu = {"handle": HANDLE + FIRST_GPU_NODE + 2}
    dispatch = {
        "correlation_id": {"internal": 5, "external": 0},
        "start_timestamp": 10,
        "end_timestamp": 30,
        "dispatch_info": {"agent_id": gpu, "queue_id": {"handle": 4}, "kernel_id": 0, "dispatch_id": 1},
    }
    values = [(1, 2.0), (1, 3.5), (2, 7.0), (9, 1.0)]
    records = [{"counter_id": {"handle": handle}, "value": value} for handle, value in values]
    more = {
        "counters": [{"id": {"handle": 1}, "name": "SQ_WAVES"}, {"id": {"handle": 2}, "name": "GRBM_COUNT"}],
        "kernel_symbols": [{"kernel_id": 0, "formatted_kernel_name": "k"}],
        "callback_records": {"counter_collection": [{"thread_id": 3, "dispatch_data": dispatch, "records": records}]},
    }
    trace = rocprofv3_json.read(write_json(tmp_path / "r.json", results_json([], **more)))
    assert dict(trace.counters.schema) == COUNTERS
    assert trace.counters.rows() == [
        (5, 2, "k", "SQ_WAVES", 5.5, None), (5, 2, "k", "GRBM_COUNT", 7.0, None), (5, 2, "k", "counter 9", 1.0, None),
    ]  # fmt: skip
    # Without a kernel trace, the dispatch is known from its counters.
    assert trace.events.select("ts", "dur", "device", "stream", "tid").rows() == [(10, 20, 2, 4, "3")]
    with_trace = results_json([EVENT], **(more | {"kernel_symbols": []}))
    assert rocprofv3_json.read(write_json(tmp_path / "r.json", with_trace)).events.height == 1


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ({"formatted_kernel_name": "f", "demangled_kernel_name": "d", "truncated_kernel_name": "t"}, "f"),
        ({"formatted_kernel_name": "_Z1f.kd", "demangled_kernel_name": "f(int) [clone .kd]"}, "f(int)"),
        ({"demangled_kernel_name": "f(int) (.kd)"}, "f(int)"),
        ({"kernel_name": "_Z1fi.kd"}, "_Z1fi"),
        ({"truncated_kernel_name": "t"}, "t"),
        ({}, "kernel 0"),
    ],
)
def test_the_name_of_a_kernel(tmp_path, symbol, name):
    process = results_json([EVENT], kernel_symbols=[{"kernel_id": 0} | symbol])
    assert rocprofv3_json.read(write_json(tmp_path / "r.json", process)).events["name"].to_list() == [name]


def test_records_that_are_no_events_are_counted_and_unknown_lists_too(tmp_path):
    process = results_json([EVENT])
    process["buffer_records"] |= {
        "pc_sample_host_trap": [{"record": {}, "inst_index": 1}] * 3,
        "hip_graph": [{"x": 1}] * 2,
        "kfd_queue": [],
        "rocshmem_api": [{"kind": 3, "operation": 99, "start_timestamp": 1, "end_timestamp": 2}],
    }
    process["buffer_records"]["kernel_dispatch"] += [
        {"start_timestamp": 9, "end_timestamp": 8},
        {"start_timestamp": 9},
        {"start_timestamp": 2**63, "end_timestamp": 2**63 + 1},
    ]
    trace = rocprofv3_json.read(write_json(tmp_path / "r.json", process))
    assert trace.events["kind"].to_list() == ["kernel", "runtime"]
    assert trace.events["name"].to_list()[1] == "rocshmem_api 99"
    assert trace.unread == {
        "PC sample": 3,
        "hip_graph record": 2,
        "negative duration": 1,
        "no readable start or duration": 2,
    }


def test_processes_of_one_file_keep_their_pids_and_secrets_are_gone(tmp_path):
    other = results_json(
        [EVENT], metadata={"pid": 78, "command": ["bash", "-c", "HF_TOKEN=abc123 python t.py --tokenizer x"]}
    )
    trace = rocprofv3_json.read(write_json(tmp_path / "rank3_results.json", results_json([EVENT]), other))
    assert trace.events["pid"].to_list() == ["77", "78"]
    assert trace.events["rank"].to_list() == [3, 3]
    first, second = trace.meta["processes"]
    assert first["command"] == ["python", "t.py", "--api-key", "(redacted)"]
    assert second["command"][2] == "HF_TOKEN=(redacted) python t.py --tokenizer x"
    assert "caches" not in trace.devices[0]


def test_external_ids_join_only_where_there_are_some(tmp_path):
    process = results_json([EVENT, EVENT | {"correlation": 6}])
    process["buffer_records"]["kernel_dispatch"][1]["correlation_id"]["external"] = 44
    trace = rocprofv3_json.read(write_json(tmp_path / "r.json", process))
    assert trace.events["external_id"].to_list() == [None, 44]


WHOLE = json.dumps(
    {"rocprofiler-sdk-tool": [results_json([EVENT, EVENT | {"ts": 7, "correlation": 1}, *KINDS])]}
).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"not json", "not JSON"),
        (b"{}", "is not a rocprofv3"),
        (b"[1]", "is not a rocprofv3"),
        (b'{"rocprofiler-sdk-tool": 3}', "is not a rocprofv3"),
        (WHOLE.replace(b'"thread_id": 908', b'"thread_id": "x"'), "is not a rocprofv3 list"),
        (WHOLE[:-100], "cut off or damaged"),
        (gzip.compress(WHOLE, mtime=0)[:-20], "cut-off gzip"),
        (b"\x1f\x8b\x00", "cut-off gzip"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        rocprofv3_json.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_bare_nan_and_invalid_text_are_read(tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(WHOLE.replace(b'"bytes": 64', b'"bytes": nan').replace(b"step 1", b"st\xffp 1"))
    trace = rocprofv3_json.read(path)
    assert trace.events.filter(kind="memcpy")["bytes"].to_list() == [None]
    assert "st\ufffdp 1" in trace.events["name"].to_list()


def test_partial_reads_the_records_before_any_cut(tmp_path):
    path = tmp_path / "r.json"
    whole = rocprofv3_json.read(write_json(path, results_json([EVENT, EVENT | {"ts": 7, "correlation": 1}, *KINDS])))
    rows = whole.events.rows()
    data = path.read_bytes()
    start = data.index(b'"buffer_records":{"kernel_dispatch"')
    seen = set()
    for cut in [*range(start, len(data) - 5, 9), len(data) - 4]:
        path.write_bytes(data[:cut])
        trace = rocprofv3_json.read(path, partial=True)
        assert trace.events.rows() == rows[: trace.events.height]
        assert set(trace.unread) <= {"record cut off at the end of the file"}
        seen.add(trace.events.height)
    assert seen == set(range(len(rows) + 1))
    for cut in range(data.index(b'"agents"'), data.index(b'"kernel_symbols"'), 11):
        path.write_bytes(data[:cut])
        devices = rocprofv3_json.read(path, partial=True).devices
        assert devices == whole.devices[: len(devices)]
    path.write_bytes(gzip.compress(data)[:-30])
    assert rocprofv3_json.read(path, partial=True).format == "rocprofv3-json"


def test_sniffing_is_by_content():
    assert rocprofv3_json.sniff(WHOLE[:300], Path("x"))
    assert not rocprofv3_json.sniff(b'{"traceEvents": []}', Path("r_results.json"))
    assert not rocprofv3_json.sniff(b"", Path("r_results.json"))


def test_mutated_files_give_a_trace_or_a_sentence(tmp_path):
    rng = random.Random(5)
    path = tmp_path / "f.json"
    for _ in range(300):
        data = bytearray(WHOLE)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'",:{}[]\\\x00\xff0-Ee')
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        with contextlib.suppress(InputError):
            rocprofv3_json.read(path, partial=rng.random() < 0.5)
