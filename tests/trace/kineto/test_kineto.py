"""The reader: exact times, every event accounted for, and one sentence for each thing that can be wrong."""

import contextlib
import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rung.errors import InputError
from rung.trace import Trace, read
from rung.trace.table import SCHEMA

SHARED = Path(__file__).parents[4] / "shared" / "data" / "traces"


def kernel(**changes):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 2,
        "tid": 0,
        "ts": 10.5,
        "dur": 1.25,
        "args": {"device": 2, "stream": 0, "correlation": 7, "External id": 9},
    } | changes


def write(folder, events, name="t.json", **top):
    path = Path(folder) / name
    path.write_text(json.dumps({"traceEvents": events, **top}))
    return path


def test_a_gpu_event_keeps_stream_zero_and_its_device(tmp_path):
    trace = read(write(tmp_path, [kernel()], deviceProperties=[{"id": 0, "name": "MI300X"}]))
    row = trace.events.row(0, named=True)
    assert (row["device"], row["stream"], row["correlation"], row["external_id"]) == (2, 0, 7, 9)
    assert (row["ts"], row["dur"], row["kind"]) == (10_500, 1_250, "kernel")
    assert trace.devices == [{"id": 0, "name": "MI300X"}]
    assert dict(trace.events.schema) == SCHEMA


def test_microseconds_since_1970_are_read_to_the_nanosecond(tmp_path):
    path = tmp_path / "t.json"
    # No float64 holds this number: the nearest ones are 0.25 us apart.
    path.write_text('{"traceEvents": [{"ph": "X", "ts": 1712867402348256.123, "dur": 0.0015}]}')
    row = read(path).events.row(0, named=True)
    assert row["ts"] == 1712867402348256123
    assert row["dur"] == 2  # half a nanosecond rounds to even


def test_a_host_event_with_a_stream_is_no_gpu_event(tmp_path):
    event = kernel(cat="cpu_op", args={"stream": 0, "Input Dims": [[2, 3], []]})
    row = read(write(tmp_path, [event])).events.row(0, named=True)
    assert row["device"] is None
    assert row["stream"] is None
    assert json.loads(row["dims"]) == [[2, 3], []]


def test_what_is_no_complete_event_is_counted_by_reason(tmp_path):
    odd = [{"ph": phase} for phase in ("s", "f", "M", "C", "i", "B", "?")]
    odd += [kernel(dur=-1), kernel(ts="soon"), {"ph": "X", "name": "no times"}]
    trace = read(write(tmp_path, [kernel(), *odd]))
    assert trace.events.height == 1
    assert trace.unread == {
        "flow event": 2,
        "metadata event": 1,
        "counter event": 1,
        "instant event": 1,
        "begin or end event": 1,
        "event of another phase": 1,
        "negative duration": 1,
        "no readable start or duration": 2,
    }


def test_a_trace_without_events_is_valid(tmp_path):
    trace = read(write(tmp_path, []))
    assert isinstance(trace, Trace)
    assert trace.events.height == 0
    assert dict(trace.events.schema) == SCHEMA


def test_compression_is_told_by_content(tmp_path):
    plain = write(tmp_path, [kernel()], name="plain.json.gz")
    packed = tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain).events.equals(read(packed).events)


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([kernel()]))
    assert read(path).events.height == 1


def test_the_infinite_bandwidth_of_an_empty_copy_does_not_lose_the_trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 0, "args": {"bandwidth": inf, "bytes": 4}}]}')
    assert read(path).events["bytes"].to_list() == [4]


def test_characters_that_are_no_utf_8_are_replaced_and_said(tmp_path):
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": [kernel(name="a?b?"), kernel(name="\ufffd whole")]}, ensure_ascii=False)
    path.write_bytes(text.encode().replace(b"?", b"\xff"))
    trace = read(path)
    assert trace.events["name"].to_list() == ["a\ufffdb\ufffd", "\ufffd whole"]
    assert trace.meta["replaced"].startswith("2 characters")
    assert "replaced" not in read(write(tmp_path, [kernel(name="\ufffd")])).meta


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"hello", "not a torch.profiler trace"),
        (b"\x89PNG\r\n", "not a torch.profiler trace"),
        (b"{}", "not a torch.profiler trace"),
        (b"[1, 2]", "not a torch.profiler trace"),
        (b'[{"a": 1}]', "not a torch.profiler trace"),
        (b'{"other": ' + b"[" * 100_000, "is not complete JSON"),
        (b'{"traceEvents": [', "cut off"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-3], "gzip"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:12] + b"\xff" * 12, "gzip"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_the_path(tmp_path, content, says):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="no file"):
        read(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="directory"):
        read(tmp_path)


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ts": st.integers(0, 2**61),
            "dur": st.integers(0, 2**40),
            "name": st.text(max_size=20),
            "correlation": st.integers(0, 2**63 - 1),
            "stream": st.integers(0, 9),
        }
    ),
    max_size=8,
)


def microseconds(ns):
    return f"{ns // 1000}.{ns % 1000:03d}"


@given(EVENTS)
@example([{"ts": 0, "dur": 0, "name": "BeginNs", "correlation": 0, "stream": 0}])  # as another format calls a field
def test_what_is_written_is_what_is_read(events):
    texts = [
        f'{{"ph": "X", "cat": "kernel", "pid": 1, "tid": 5, "ts": {microseconds(e["ts"])}, '
        f'"dur": {microseconds(e["dur"])}, "name": {json.dumps(e["name"])}, '
        f'"args": {{"stream": {e["stream"]}, "correlation": {e["correlation"]}}}}}'
        for e in events
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_text('{"traceEvents": [' + ",".join(texts) + "]}")
        rows = read(path).events.select("ts", "dur", "name", "correlation", "stream").to_dicts()
    assert rows == [{key: e[key] for key in ("ts", "dur", "name", "correlation", "stream")} for e in events]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_a_file_cut_at_any_byte_is_an_input_error(tmp_path, packed, bare):
    events = [kernel(name='a µ \\ " name'), {"ph": "M"}]
    whole = json.dumps(events if bare else {"traceEvents": events, "traceName": "t"}, ensure_ascii=False).encode()
    if packed:
        whole = gzip.compress(whole)
    path = tmp_path / "t.json"
    path.write_bytes(whole)
    assert read(path).events.height == 1
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            read(path)


@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_damaged_file_is_read_or_an_input_error_but_never_another_exception(junk, at):
    whole = json.dumps({"traceEvents": [kernel()]}).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(whole[:at] + junk + whole[at + len(junk) :])
        with contextlib.suppress(InputError):
            assert isinstance(read(path), Trace)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_every_real_trace_is_read_and_every_event_accounted_for():
    paths = sorted(SHARED.glob("mi*.json.gz"))
    assert paths
    for path in paths:
        trace = read(path)
        raw = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert trace.events.height + trace.memory.height + sum(trace.unread.values()) == len(raw)
        on_gpu = sum(event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for event in raw)
        kinds = trace.events.filter(trace.events["kind"].is_in(["kernel", "memcpy", "memset"]))
        assert kinds.height == on_gpu
        assert kinds["device"].null_count() == 0


@pytest.mark.parametrize("ts", ["7.5", "7.5000001"], ids=["quick", "careful"])
def test_what_the_allocators_say_is_a_table_of_its_own(tmp_path, ts):
    text = """{"traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 1, "tid": 2, "ts": 7, "dur": 1, "args": {}},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": TS, "args":
            {"Total Reserved": 64, "Total Allocated": 48, "Bytes": -16, "Addr": 9, "Device Id": 3, "Device Type": 1}},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 8, "args": {"Bytes": 5, "Device Id": -1}},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 8, "args": {"Bytes": 5}},
        {"ph": "i", "name": "mark", "pid": 1, "tid": 2, "ts": 8}]}""".replace("TS", ts)
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = read(path)
    assert trace.memory.rows() == [
        (7500, 3, 9, -16, 48, 64, "1", "2", None),
        (8000, None, None, 5, None, None, "1", "2", None),
    ]
    assert trace.unread == {"instant event": 2}
