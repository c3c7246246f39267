"""Reading in pieces: the same table wherever the blocks end, and both ways of reading agree."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.trace import source
from rung.trace.kineto import events as kineto_events
from rung.trace.kineto import reader as kineto
from rung.trace.kineto.columns import Columns
from rung.trace.kineto.exact import exact, nanoseconds
from rung.trace.kineto.text import Text

# Texts that look like what the reader cuts at.
TRICKY = st.sampled_from(
    ['},{"ph":"X"', '}],"traceEvents":[', '\\"', "\\", '}]}', "nan", 'a": nan,', "µ\u2028", "[", "{", '"ts": 1.23456']
) | st.text(max_size=12)  # fmt: skip
NUMBERS = st.integers(0, 2**61) | st.integers(0, 2**33)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXiMsf")},
    optional={
        "cat": st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "python_function", "Kernel", "new"]),
        "name": TRICKY,
        "pid": st.integers(0, 9) | TRICKY,
        "tid": st.integers(0, 9) | TRICKY,
        "ts": NUMBERS,
        "dur": NUMBERS,
        "args": st.fixed_dictionaries(
            {},
            optional={
                "device": st.integers(0, 9) | st.integers(2**31, 2**32),
                "stream": st.integers(0, 9) | st.just("7"),
                "correlation": st.integers(-1, 2**64),
                "External id": st.integers(0, 2**63 - 1),
                "bytes": st.integers(0, 2**40) | st.just("12") | st.none(),
                "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
                "nested": st.lists(st.fixed_dictionaries({"ph": TRICKY}), max_size=3),
            },
        ),
    },
)


def text_of(events, spaced):
    def number(event, key):
        return f"{event[key] // 1000}.{event[key] % 1000:03d}" if key in event else None

    parts = []
    for event in events:
        plain = {key: value for key, value in event.items() if key not in ("ts", "dur")}
        times = "".join(f'"{key}": {number(event, key)}, ' for key in ("ts", "dur") if key in event)
        parts.append("{" + times + json.dumps(plain, ensure_ascii=False)[1:])
    between = ",\n  " if spaced else ","
    return (
        '{"schemaVersion": 1, "traceEvents": [' + between.join(parts) + '], "deviceProperties": [{"ph": 1}, {"ph": 2}]}'
    )


def read_pieces(data, size):
    """The reader's own parts on blocks of this size, without a file."""
    columns = Columns()
    events = kineto_events.Events(columns)
    text = Text(data[i : i + size] for i in range(0, len(data), size))
    text.read(events.take)
    return columns.frame(), events.unread, text.top


@given(st.lists(EVENT, max_size=12), st.integers(1, 400), st.booleans())
def test_the_table_does_not_depend_on_where_the_blocks_end(events, size, spaced):
    data = text_of(events, spaced).encode()
    whole, unread, top = read_pieces(data, len(data))
    frame, unread_in_pieces, top_in_pieces = read_pieces(data, size)
    assert frame.equals(whole)
    assert unread_in_pieces == unread
    assert top_in_pieces == top == {"schemaVersion": 1, "deviceProperties": [{"ph": 1}, {"ph": 2}]}


@given(st.lists(EVENT, max_size=12))
def test_the_quick_and_the_careful_way_give_the_same_table(events):
    data = text_of(events, False).encode()
    text = data[data.index(b"[") : data.rindex(b', "deviceProperties"')]
    quick, careful = kineto_events.Events(Columns()), kineto_events.Events(Columns())
    quick.take(text)
    careful._take_carefully(text)
    assert quick.columns.frame().equals(careful.columns.frame())
    assert quick.unread == careful.unread


FRAME = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.just("python_function"),
        "name": TRICKY,
        "pid": st.integers(0, 9) | TRICKY,
        "tid": st.just(1),
        "ts": NUMBERS,
        "dur": NUMBERS,
        "args": st.just({"Python id": 1}) | st.just({"External id": 2**70, "bytes": []}) | st.none(),
    }
)
ODD = {"ph": ["i", "M", "x"], "cat": ["cpu_op", "Python_Function"], "pid": [None], "ts": [-1], "dur": [-1]}


@given(st.lists(FRAME, min_size=1, max_size=6), st.sampled_from([None, *ODD, "missing"]), st.data())
def test_frames_alone_and_among_others_make_the_table_of_the_careful_way(events, odd, data):
    if odd is not None:
        event = events[data.draw(st.integers(0, len(events) - 1))]
        if odd == "missing":
            del event[data.draw(st.sampled_from(sorted(event)))]
        else:
            event[odd] = data.draw(st.sampled_from(ODD[odd]))
    text = text_of(events, False).encode()
    text = text[text.index(b"[") : text.rindex(b', "deviceProperties"')]
    quick, careful = kineto_events.Events(Columns()), kineto_events.Events(Columns())
    quick.take(text)
    careful._take_carefully(text)
    assert quick.columns.frame().equals(careful.columns.frame())
    assert (quick.unread, quick.unread_ns, quick.seen) == (careful.unread, careful.unread_ns, careful.seen)


def test_a_batch_of_frames_is_decoded_once(monkeypatch):
    monkeypatch.setattr(kineto_events, "_quick", None)
    text = text_of(
        [{"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 1}] * 3, True
    )
    events = kineto_events.Events(Columns())
    events.take(text[text.index("[") : text.rindex(', "deviceProperties"')].encode())
    assert events.columns.frame()["kind"].to_list() == ["python"] * 3


@given(
    st.lists(st.tuples(st.integers(0, 9_007_199_254), st.integers(0, 10**6), st.integers(0, 6)), min_size=1, max_size=4)
)
def test_floats_are_only_used_where_they_give_what_the_digits_say(parts):
    numbers = [
        f"{high}{low:06d}" + (f".{low % 10**digits:0{digits}d}" if digits else "") for high, low, digits in parts
    ]
    text = ("[" + ",".join(f'{{"ts":{n}}}' for n in numbers) + "]").encode()
    found = exact([float(n) for n in numbers], text, b"ts")
    if found is not None:
        assert found.tolist() == [nanoseconds(n.encode()) for n in numbers]


@pytest.mark.parametrize(
    "ts", ["4398046511103.999", "8796093022207.999", "2234705626572.123", "1695835542481129", "0.001"]
)
def test_the_clocks_of_real_traces_take_the_quick_way(ts):
    found = exact([float(ts)], f'[{{"ts":{ts}}}]'.encode(), b"ts")
    assert found is not None
    assert found.tolist() == [nanoseconds(ts.encode())]


def test_a_single_event_of_many_blocks_is_read_and_in_linear_time(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BLOCK", 1 << 12)
    path = tmp_path / "t.json"
    big = {"ph": "X", "ts": 1, "dur": 1, "name": "x" * 3_000_000}
    path.write_text(json.dumps({"traceEvents": [big, {"ph": "X", "ts": 2, "dur": 1}]}))
    assert kineto.read(path).events["ts"].to_list() == [1000, 2000]


def test_a_header_of_many_blocks_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BLOCK", 1 << 12)
    path = tmp_path / "t.json"
    header = {"log": ["traceEvents", '"traceEvents": ['] * 20_000, "nested": {"traceEvents": [1]}}
    path.write_text(json.dumps({**header, "traceEvents": [{"ph": "X", "ts": 2, "dur": 1}], "traceName": "t"}))
    trace = kineto.read(path)
    assert trace.events.height == 1
    assert trace.meta == {"traceName": "t"}


def test_python_frames_keep_no_ids_either_way():
    event = '{"ph":"X","cat":"python_function","ts":1,"dur":1,"args":{"External id":3,"bytes":2}}'
    for text in (f"[{event}]", f'[{event},{{"ph":"X","ts":1,"dur":1,"args":{{"bytes":true}}}}]'):
        events = kineto_events.Events(Columns())
        events.take(text.encode())
        assert events.columns.frame().row(0, named=True)["external_id"] is None


@given(st.lists(st.text(max_size=8), min_size=1, max_size=30), st.integers(1, 7))
def test_names_survive_stretches_with_tables_of_their_own(names, flush):
    from rung.trace.kineto import columns as module

    before = module._FLUSH
    module._FLUSH = flush
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.json"
            path.write_text(json.dumps([{"ph": "X", "ts": 1, "dur": 1, "name": name} for name in names]))
            assert kineto.read(path).events["name"].to_list() == names
    finally:
        module._FLUSH = before


def test_what_a_profiler_keeps_of_a_reading_is_in_nobodys_way() -> None:
    """It keeps frames of a thread for longer than they run, and with them views of the text."""
    events = [{"ph": "X", "name": "a" * size} for size in (10, 10, 500_000, 10, 2_000_000, 10)]
    whole = json.dumps({"traceEvents": events}).encode()
    kept, seen = [], []

    def take(listed: bytes | memoryview) -> None:
        seen.extend(json.loads(bytes(listed)))
        kept.append(memoryview(listed))

    Text(whole[at : at + 100_000] for at in range(0, len(whole), 100_000)).read(take)
    assert seen == events
