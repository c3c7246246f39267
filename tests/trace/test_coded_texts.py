"""Ids of processes and threads, and inputs of operators, are coded texts: what they say is what the file says."""

import json

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rung.analysis.calls import host_calls
from rung.analysis.origins import origins
from rung.trace import cache, entries, read
from rung.trace.kineto.columns import Columns
from rung.trace.kineto.events import Events
from rung.trace.kineto.structs import decoder_of_thread
from rung.trace.rows import conformed
from rung.trace.table import CODED, SCHEMA

ABSENT = object()
OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 5}
# A number of another kind sends a batch the careful way.
CAREFUL = OP | {"pid": 1, "tid": 1, "ts": 90_000, "args": {"External id": 7.0}}


def opened(path, events):
    path.write_text(json.dumps({"traceEvents": events}), "utf-8")
    return read(path)


def placed(event, **ids):
    return event | {key: value for key, value in ids.items() if value is not ABSENT}


@pytest.mark.parametrize("odd", [[], [CAREFUL]], ids=["quick", "careful"])
@pytest.mark.parametrize(
    ("pid", "tid", "texts"),
    [
        (7, "stream 7", ("7", "stream 7")),
        ("Spans", -1, ("Spans", "-1")),
        ("", ABSENT, ("", "")),
        (ABSENT, ABSENT, ("", "")),
        ('a"b\\\n\u2603', "\U0001f600" * 40, ('a"b\\\n\u2603', "\U0001f600" * 40)),
        (2**63 - 1, "2**64", (str(2**63 - 1), "2**64")),
    ],
)
def test_ids_are_the_texts_of_what_is_written(tmp_path, pid, tid, texts, odd):
    events = [placed(OP, pid=pid, tid=tid, ts=10), placed(OP, pid=1, tid=2, ts=30), *odd]
    rows = opened(tmp_path / "t.json", events).events
    assert rows.select("pid", "tid").rows()[:2] == [texts, ("1", "2")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.text(max_size=6), st.integers(0, 3) | st.sampled_from(["0", "stream 7"]), st.text(max_size=6)),
        max_size=9,
    )
)
def test_names_ids_and_inputs_of_any_characters_are_kept(tmp_path, rows):
    rows = [(name.replace("_Z", ""), tid, dims) for name, tid, dims in rows]
    events = [
        OP | {"name": name, "pid": dims, "tid": tid, "ts": i, "args": {"Input Dims": [dims]}}
        for i, (name, tid, dims) in enumerate(rows)
    ]
    table = opened(tmp_path / "t.json", events).events
    assert table.select("name", "tid", "pid").rows() == [(name, str(tid), dims) for name, tid, dims in rows]
    assert [json.loads(text) for text in table["dims"]] == [[dims] for _, _, dims in rows]


_IDS = st.sampled_from([0, -1, 7, "7", "stream 7", "", 10**18 - 1, 2**63 - 1, -(2**63), 2**64])


@example([(7, 1, 2), (7, 2, 1)], True, False)
@example([(1, 7, 2), (2, 7, 1)], False, True)
@given(st.lists(st.tuples(_IDS, _IDS, st.integers(1, 3)), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_frames_of_one_thread_or_several_are_read_as_one_by_one(runs, ids_first, inner):
    frames = []
    for pid, tid, times in runs:
        said = {"pid": pid, "tid": tid}, {"name": '"pid":7,"tid":7', "args": {"pid": 7, "tid": 7} if inner else {}}
        frame = {"ph": "X", "cat": "python_function", "ts": 1.5, "dur": 2}
        frames += [frame | said[0] | said[1] if ids_first else said[1] | frame | said[0]] * times
    quick, careful = Events(Columns()), Events(Columns())
    quick.take(json.dumps(frames).encode())
    careful._take_carefully(json.dumps(frames).encode())
    assert quick.columns.frame().equals(careful.columns.frame())


def test_a_batch_of_one_thread_is_decoded_for_it_alone():
    before = decoder_of_thread.cache_info()
    frame = {"ph": "X", "cat": "python_function", "name": "f", "pid": 8_123, "tid": 8_124, "ts": 1.5, "dur": 2}
    for _ in range(2):
        events = Events(Columns())
        events.take(json.dumps([frame] * 3, indent=1).encode())
        assert events.columns.frame().select("pid", "tid").unique().rows() == [("8123", "8124")]
    after = decoder_of_thread.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)


def test_a_number_and_its_text_are_one_thread_and_other_texts_are_others(tmp_path):
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "dur": 1, "args": {"correlation": 1}}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 3, "ts": 50, "dur": 5}
    for tid, caller in (("7", 0), ("7 ", -1), ("stream 7", -1)):
        events = [OP | {"pid": 1, "tid": 7, "ts": 10}, launch | {"pid": "1", "tid": tid, "ts": 12}]
        trace = opened(tmp_path / "t.json", [*events, kernel | {"args": {"device": 0, "stream": 3, "correlation": 1}}])
        assert host_calls(trace)["caller"].to_list() == [-1, caller]
        assert origins(trace)["op"].to_list() == [0 if caller == 0 else None]


def test_ranks_with_other_texts_are_one_trace(tmp_path):
    for rank, tid in ((0, "main"), (1, "stream 7"), (2, 7)):
        opened(tmp_path / f"rank{rank}.json", [OP | {"pid": rank, "tid": tid, "ts": 1}])
    events = read(tmp_path).events
    assert events.select("rank", "pid", "tid").rows() == [(0, "0", "main"), (1, "1", "stream 7"), (2, "2", "7")]


def test_ids_of_any_type_become_texts():
    frame = pl.DataFrame({"ts": [1, 2], "pid": [7, None], "tid": [True, False], "dims": ["[]", None]})
    made = conformed(frame, SCHEMA)
    assert made.select("pid", "tid", "dims", "concrete").rows() == [
        ("7", "true", "[]", None),
        (None, "false", None, None),
    ]
    assert dict(made.schema) == SCHEMA


def test_an_entry_of_the_cache_with_plain_texts_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "THRESHOLD", 0)
    file = tmp_path / "t.json"
    first = opened(file, [OP | {"pid": "p", "tid": "stream 7", "ts": 1}])
    kept = next(cache.directory().iterdir()) / "events.parquet"
    pl.read_parquet(kept).with_columns(pl.col(CODED).cast(pl.String)).write_parquet(kept)
    again = read(file)
    assert "read again" in again.meta["cache"]
    assert dict(again.events.schema) == SCHEMA
    assert read(file).events.equals(first.events)
