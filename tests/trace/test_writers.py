"""The writers: what is written is what is read, in every format; whole or not at all; and a viewer can draw it."""

import gzip
import json
import os
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given
from made_traces import in_order, made, traces

from rung.analysis.timeline import timeline
from rung.errors import InputError
from rung.trace import read, write_chrome, write_csv, write_perfetto
from rung.trace.output import Note
from rung.trace.perfetto import reader as pftrace
from rung.trace.places import LANES
from rung.trace.table import COUNTERS, MEMORY, SCHEMA

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
KERNEL = {"kind": "kernel", "device": 1, "stream": 0, "pid": "1", "tid": "0", "name": "k"}
CALL = {"kind": "runtime", "pid": "100", "tid": "101", "name": "hipLaunchKernel"}


def written(write, trace, name, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(trace, path, **options)
        if name.endswith("pftrace"):
            return pftrace.read(path)
        return read(path) if "json" in name else path.read_bytes()


def chrome(trace, **options):
    with tempfile.TemporaryDirectory() as folder:
        write_chrome.write(trace, Path(folder) / "t.json", **options)
        return json.loads((Path(folder) / "t.json").read_bytes())["traceEvents"]


@given(traces())
def test_chrome_json_is_read_back_equal_and_in_order(trace):
    back = written(write_chrome.write, trace, "t.json")
    assert back.events.equals(trace.events)
    assert back.devices == trace.devices


@given(traces())
def test_pftrace_is_read_back_equal_with_its_counters(trace):
    back = written(write_perfetto.write, trace, "t.pftrace")
    assert in_order(back.events).equals(in_order(trace.events))
    assert in_order(back.counters).equals(in_order(trace.counters))
    assert set(back.unread) <= {"counter event"}


def test_chrome_json_keeps_what_the_allocators_said():
    rows = [(5, 0, 9, -16, 48, 64, "1", "2", None), (6, None, None, 5, None, None, "host", "", 1)]
    trace = made({"kind": "cpu_op", "pid": "1", "tid": "2", "ts": 4, "dur": 3})
    trace = replace(trace, memory=pl.DataFrame(rows, schema=MEMORY, orient="row"))
    assert written(write_chrome.write, trace, "t.json").memory.equals(trace.memory)


@given(traces())
def test_csv_is_read_back_equal_and_tells_missing_from_empty(trace):
    with tempfile.TemporaryDirectory() as folder:
        files = write_csv.write(trace, Path(folder) / "t.csv")
        frames = [pl.read_csv(file, schema=schema) for file, schema in zip(files, (SCHEMA, COUNTERS), strict=False)]
    assert frames[0].equals(trace.events)
    assert len(frames) == 1 + bool(trace.counters.height)
    assert frames[1:] == [] or frames[1].equals(trace.counters)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_real_traces_keep_their_events_and_gpu_timelines():
    paths = sorted(path for path in SHARED.glob("*.json.gz") if path.stat().st_size < 400_000)
    assert len(paths) > 5
    for path in paths:
        trace = read(path)
        expected = timeline(trace)
        for write, name in ((write_chrome.write, "t.json"), (write_perfetto.write, "t.pftrace")):
            back = written(write, trace, name)
            assert in_order(back.events).equals(in_order(trace.events)), (path, name)
            assert timeline(back).equals(expected), (path, name)


@pytest.mark.parametrize("name", ["t.json.gz", "t.pftrace.gz", "t.csv.gz"])
def test_a_name_in_gz_is_packed(tmp_path, name):
    trace = made(KERNEL | {"ts": 5, "dur": 2})
    write = {"json": write_chrome.write, "pftr": write_perfetto.write, "csv.": write_csv.write}[name[2:6]]
    write(trace, tmp_path / name)
    write(trace, tmp_path / name[:-3])
    packed = (tmp_path / name).read_bytes()
    assert gzip.decompress(packed) == (tmp_path / name[:-3]).read_bytes()
    if "pftrace" in name:
        assert pftrace.read(tmp_path / name).events.equals(trace.events)


def test_what_is_said_of_collectives_is_kept():
    trace = read(Path(__file__).parents[1] / "data" / "ddp" / "ranks2-slow-gpu")
    assert trace.collectives.height == 2 * 2 * 7 * 2  # ranks, steps, buckets; the call and the kernel
    again = written(write_chrome.write, trace, "t.json.gz")
    order = ["rank", "external_id", "correlation"]
    assert again.collectives.sort(order).equals(trace.collectives.sort(order))


@pytest.mark.parametrize("write", [write_chrome.write, write_perfetto.write, write_csv.write])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, write, monkeypatch):
    path = tmp_path / "t"
    path.write_text("before")
    broken = made(KERNEL | {"ts": 1}).events.with_columns(kind=pl.lit("no kind"))
    monkeypatch.setattr(pl.DataFrame, "write_csv", lambda self, file, **_: 1 / (file.write(b"half") * 0))
    with pytest.raises((KeyError, ZeroDivisionError)):
        write(made().__class__(events=broken), path)
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_a_place_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"could not be written: [A-Z][a-z ]+; choose another place\."):
        write_perfetto.write(made(), tmp_path / "file" / "t.pftrace")


def test_each_launch_points_at_its_gpu_events():
    trace = made(
        CALL | {"ts": 10, "dur": 4, "correlation": 7, "rank": 0},
        KERNEL | {"ts": 20, "dur": 5, "correlation": 7, "rank": 0},
        KERNEL | {"ts": 26, "dur": 5, "correlation": 7, "rank": 0},
        KERNEL | {"ts": 40, "dur": 5, "correlation": 7, "rank": 1},  # another rank's launch was before the window
    )
    flows = [event for event in chrome(trace) if event["ph"] in "sf"]
    assert [(flow["ph"], flow["ts"]) for flow in flows] == [("s", 0.01), ("f", 0.02), ("s", 0.01), ("f", 0.026)]
    assert len({flow["id"] for flow in flows}) == 2


def test_ranks_with_the_same_process_number_are_shown_apart():
    rows = [CALL | {"ts": 1, "rank": rank} for rank in (0, 1)]
    rows += [KERNEL | {"ts": 2, "pid": "100", "rank": rank} for rank in (0, 1)]
    shown = {event["args"]["name"] for event in chrome(made(*rows)) if event["name"] == "process_name"}
    assert shown == {f"{what} (rank {rank})" for what in ("process 100", "GPU 1") for rank in (0, 1)}
    pids = [event["pid"] for event in chrome(made(*rows)) if event["ph"] == "X"]
    assert len(set(pids)) == 4


def test_notes_and_curves_have_tracks_of_their_own():
    trace = made(
        CALL | {"ts": 10, "dur": 4, "correlation": 7},
        KERNEL | {"ts": 20, "dur": 5, "correlation": 7},
    )
    note = Note("idle", 12, 8, "waits for the host")
    lines = chrome(trace, notes=[note])
    assert [(e["ts"], e["args"]) for e in lines if e["ph"] == "C"] == [(0.01, {"kernels": 1}), (0.02, {"kernels": 0})]
    assert [e["args"]["text"] for e in lines if e["name"] == "idle"] == ["waits for the host"]
    back = written(write_perfetto.write, trace, "t.pftrace", notes=[note])
    assert back.unread == {"counter event": 2}
    assert back.events.filter(pl.col("name") == "idle").row(0)[:3] == (12, 8, "annotation")
    assert written(write_perfetto.write, trace, "t.pftrace", curves=False).unread == {}


@example(made(*(KERNEL | {"ts": ts, "dur": 10} for ts in (0, 5, 8, 15))))
@given(traces())
def test_slices_of_a_perfetto_track_nest(trace):
    """Checked with a decoder of its own, as a viewer would: by time, with a stack for each track."""
    with tempfile.TemporaryDirectory() as folder:
        write_perfetto.write(trace, Path(folder) / "t", curves=False)
        data = (Path(folder) / "t").read_bytes()
    tracks = defaultdict(list)
    for field, packet in messages(data):
        parts = dict(messages(packet))
        event = dict(messages(parts.get(11, b"")))
        if field == 1 and event.get(9) in (1, 2) and event.get(22) != b"counter_collection":
            tracks[event[11]].append((parts[8], event[9]))
    for edges in tracks.values():
        assert [time for time, _ in edges] == sorted(time for time, _ in edges)
        depth = 0
        for _, kind in edges:
            depth += 1 if kind == 1 else -1
            assert depth >= 0
        assert depth == 0


def test_more_overlaps_than_lanes_keep_their_times():
    trace = made(*(KERNEL | {"ts": i, "dur": 100 + i} for i in range(LANES + 9)))
    back = written(write_perfetto.write, trace, "t.pftrace")
    assert in_order(back.events).equals(in_order(trace.events))


def messages(data):
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number() if key & 7 != 2 else number()
            yield key >> 3, data[at : at + size]
            at += size


def test_nothing_is_written_where_a_strangers_link_leads(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / f".t.csv.{os.getpid()}.partial").symlink_to(mine)
    write_csv.write(made({**KERNEL, "ts": 0}), tmp_path / "t.csv")
    assert mine.read_text() == "precious"
    assert not (tmp_path / "t.csv").is_symlink()
