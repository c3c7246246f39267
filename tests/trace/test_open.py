"""The door to every format: what is read, what is refused with one sentence, folders, damage, and the cache."""

import contextlib
import gzip
import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import made_traces
import polars as pl
import pytest
from fuzz_files import event, made
from hypothesis import HealthCheck, given, settings
from mutations import attempt, sample
from rocprof_files import csv_files, results_json, write_json
from rocprof_files import write as write_files

from rung.errors import InputError
from rung.trace import cache, entries, read
from rung.trace import open as door
from rung.trace.repeats import REASON
from rung.trace.source import Source, content, head

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


def events(count, **changes):
    base = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 1.5, "args": {"device": 0, "stream": 7}}
    return [base | {"ts": 10.0 * i} | changes for i in range(count)]


def write(path, count=3, pack=False, **top):
    data = json.dumps({**top, "traceEvents": events(count)}).encode()
    path.write_bytes(gzip.compress(data) if pack else data)
    return path


# ---- a source ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1 << 19, (1 << 19) + 1, 3_000_000])
def test_gzip_of_any_size_and_of_several_members_is_the_content(tmp_path, size):
    data = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(data) + gzip.compress(b"end") + b"\0" * 512)
    assert content(path) == data + b"end"
    assert head(path, 10) == (data + b"end")[:10]


def test_a_zip_bomb_is_refused_before_it_is_in_memory(tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 10_000_000, 1))
    source = Source(path, max_bytes=1_000_000)
    with pytest.raises(InputError, match="--max-bytes"):
        list(source)
    assert source.size < 2_000_000
    with pytest.raises(InputError, match="--max-bytes"):
        read(path, max_bytes=1_000_000)


def test_a_directory_a_missing_and_a_forbidden_path_are_input_errors(tmp_path):
    for path, says in ((tmp_path, "directory"), (tmp_path / "none", "no file"), ("a\0b", "could not be read")):
        with pytest.raises(InputError, match=says):
            content(path)


# ---- damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9, 0.999])
def test_partial_reads_all_events_before_a_cut_and_says_so(tmp_path, pack, keep):
    rng = random.Random(1)
    shuffled = [event | {"name": f"{rng.random()}"} for event in events(4000)]
    whole = json.dumps({"schemaVersion": 1, "traceEvents": shuffled, "traceName": "t"}).encode()
    stored = gzip.compress(whole) if pack else whole
    path = tmp_path / "t.json"
    path.write_bytes(stored[: int(len(stored) * keep)])
    with pytest.raises(InputError, match="--partial"):
        read(path)
    trace = read(path, partial=True)
    left = content(path, partial=True)
    assert trace.events.height in (left.count(b'"args"'), left.count(b'"args"') - 1)
    assert trace.events["name"].to_list() == [event["name"] for event in shuffled[: trace.events.height]]
    assert trace.meta["cut"]
    assert any("cut" in reason for reason in trace.unread)


def test_partial_stops_at_damage_in_the_middle(tmp_path):
    path = write(tmp_path / "t.json", 6_000)
    data = bytearray(path.read_bytes())
    at = data.index(b'"cat"', len(data) // 2)
    data[at : at + 5] = b"#####"
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        read(path)
    trace = read(path, partial=True)
    assert trace.events.height == data[:at].count(b'"ph"') - 1
    assert "malformed" in trace.meta["cut"]


def test_partial_changes_nothing_for_a_whole_file(tmp_path):
    path = write(tmp_path / "t.json", 30)
    assert read(path, partial=True).events.equals(read(path).events)
    assert "cut" not in read(path, partial=True).meta


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_damaged_real_traces_are_read_or_refused(tmp_path):
    names = ("mi250_train", "torch_compile_triton", "cuda_event_sync_multi_stream", "mi300_vllm_graph_replay")
    texts = [sample(gzip.decompress((SHARED / f"{name}.json.gz").read_bytes()), 20_000) for name in names]
    outcomes = []
    for case in range(120):
        rng = random.Random(case)
        outcomes.append(attempt(tmp_path / "case", rng.choice(texts), rng))
    assert {"read", "refused"} == set(outcomes)


def test_damaged_files_of_every_format_are_read_or_refused(tmp_path):
    (tmp_path / "made").mkdir()
    made(tmp_path / "made")
    texts = [sample(file.read_bytes(), 20_000) for file in sorted((tmp_path / "made").iterdir())]
    for case in range(6 * len(texts)):
        attempt(tmp_path / "case", texts[case % len(texts)], random.Random(case))


# ---- facts and names -----------------------------------------------------------------------------------


def test_mangled_kernel_names_are_read(tmp_path):
    pytest.importorskip("demangle")
    path = tmp_path / "t.json"
    names = ["_ZN5aiter4normIDF16bLi256EEEvPT_", "_Zwrong", "plain"]
    path.write_text(json.dumps([event | {"name": name} for event, name in zip(events(3), names, strict=True)]))
    trace = read(path)
    assert trace.events["name"].to_list() == [
        "void aiter::norm<std::bfloat16_t, 256>(std::bfloat16_t*)",
        "_Zwrong",
        "plain",
    ]
    assert trace.meta["mangled_names"] == 1


def test_facts_of_the_run_are_kept_and_its_environment_is_not(tmp_path):
    path = write(tmp_path / "t.json", distributedInfo={"rank": 3, "world_size": 8}, env={"TOKEN": "secret"})
    trace = read(path)
    assert trace.meta["distributedInfo"] == {"rank": 3, "world_size": 8}
    assert "secret" not in repr(trace)


def test_time_that_is_not_read_is_counted(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([*events(1), events(1, dur=-2.5)[0], events(1, ts="soon")[0]]))
    assert read(path).unread_ns == {"negative duration": 2500, "no readable start or duration": 1500}


# ---- folders -------------------------------------------------------------------------------------------


def test_a_folder_is_one_run_and_its_files_are_ranks(tmp_path):
    write(tmp_path / "a.json", 2, distributedInfo={"rank": 1})
    write(tmp_path / "b.json.gz", 3, pack=True, distributedInfo={"rank": 0})
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.json").write_text("")
    trace = read(tmp_path)
    assert dict(trace.events.group_by("rank").len().iter_rows()) == {1: 2, 0: 3}
    assert trace.unread == {"file of no known format": 2}
    assert trace.meta["skipped"] == ["empty.json", "notes.txt"]
    assert [(file["file"], file["rank"]) for file in trace.meta["files"]] == [("a.json", 1), ("b.json.gz", 0)]


def test_two_files_that_state_one_rank_for_one_time_are_two_processes(tmp_path):
    """Of two jobs whose ranks begin at 0, say. One that was recorded later is the same process again."""
    for name, rank, begin in (("a.json", 0, 1.0), ("b.json", 0, 1.5), ("c.json", 1, 1.0), ("later.json", 0, 1e6)):
        later = [event | {"ts": event["ts"] + begin, "name": name} for event in events(3)]
        (tmp_path / name).write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": later}))
    trace = read(tmp_path)
    assert [(file["file"], file["rank"]) for file in trace.meta["files"]] == [
        ("a.json", 0), ("b.json", 2), ("c.json", 1), ("later.json", 0),
    ]  # fmt: skip
    assert trace.unread == {"file that states rank 0 at the same time as another, and is shown as rank 2": 1}


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["x_rank12.json", "x_rank-3.json"], [3, 12]),
        (["rank0.1.json", "rank0.2.json"], [0, 1]),
        (["a.json", "b_rank7.json"], [0, 1]),
    ],
)
def test_ranks_come_from_names_or_places(tmp_path, names, ranks):
    for name in names:
        write(tmp_path / name, 1)
    assert sorted(read(tmp_path).events["rank"].to_list()) == ranks


def test_a_folder_without_traces_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no file"):
        read(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="no trace of a known format"):
        read(tmp_path)


def test_every_registered_format_can_be_imported():
    for name in door.FORMATS.values():
        module = __import__(name, fromlist=["read"])
        assert not module.sniff(b"hello", Path("x"))


# ---- the cache -----------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "THRESHOLD", 0)
    folder = tmp_path / "in"
    folder.mkdir()
    return write(folder / "t.json", 5, deviceProperties=[{"name": "g"}], distributedInfo={"rank": 2})


def no_reader(*_, **__):
    raise AssertionError("the file was read again")


def test_a_second_opening_reads_no_text_and_gives_the_same(kept, monkeypatch):
    first = read(kept)
    monkeypatch.setattr("rung.trace.kineto.reader.read", no_reader)
    second = read(kept)
    assert second.events.equals(first.events)
    assert (second.devices, second.meta, second.unread, second.unread_ns, second.source) == (
        first.devices,
        first.meta,
        first.unread,
        first.unread_ns,
        first.source,
    )
    with pytest.raises(AssertionError):
        read(kept, cache=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made_traces.traces())
def test_the_cache_gives_back_any_events(kept, trace):
    assert cache.save("entry", replace(trace, unread={"flow event": 3}, unread_ns={"negative duration": 7})) == ""
    again = cache.load("entry")
    assert again.events.equals(trace.events)
    assert again.counters.equals(trace.counters)
    assert (again.devices, again.unread, again.unread_ns) == (
        trace.devices,
        {"flow event": 3},
        {"negative duration": 7},
    )


def test_a_changed_file_is_read_again(kept):
    read(kept)
    before = kept.stat()
    kept.write_bytes(kept.read_bytes().replace(b'"k"', b'"q"'))
    os.utime(kept, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert set(read(kept).events["name"]) == {"q"}


@pytest.mark.parametrize("name", ["events.parquet", "facts.json", "counters.parquet"])
@pytest.mark.parametrize("junk", [b"", b"junk", b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_a_damaged_entry_is_no_error_and_is_replaced(kept, name, junk):
    first = read(kept)
    entry = next(path for path in cache.directory().iterdir())
    (entry / name).write_bytes(junk)
    again = read(kept)
    assert again.events.equals(first.events)
    assert "read again" in again.meta["cache"]
    assert "cache" not in read(kept).meta


def test_an_entry_with_another_table_is_not_believed(kept):
    read(kept)
    entry = next(path for path in cache.directory().iterdir())
    pl.DataFrame({"ts": [1]}).write_parquet(entry / "events.parquet")
    assert read(kept).events.height == 5


def test_a_cache_that_cannot_be_written_is_only_noted(kept, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file" / "cache"))
    trace = read(kept)
    assert trace.events.height == 5
    assert "could not be kept" in trace.meta["cache"]


def test_partial_and_limited_readings_leave_no_entry(kept):
    read(kept, partial=True)
    read(kept, max_bytes=10_000)
    with contextlib.suppress(FileNotFoundError):
        assert not list(cache.directory().iterdir())


def test_old_entries_go(kept, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT", 2)
    for i in range(4):
        read(write(kept.parent / f"{i}.json", i + 1))
    assert len(list(cache.directory().iterdir())) == 2


def test_what_a_killed_process_left_of_an_entry_is_removed(kept):
    for name, age in ((".partial-old", 2 * cache.ABANDONED), (".partial-new", 0)):
        (cache.directory() / name).mkdir(parents=True)
        os.utime(cache.directory() / name, (time.time() - age,) * 2)
    read(kept)
    assert {path.name for path in cache.directory().glob(".partial-*")} == {".partial-new"}


def test_a_run_that_was_written_in_two_formats_is_counted_once(tmp_path):
    rng = random.Random(1)
    found = [event(rng, i) for i in range(24)]
    write_files(tmp_path, csv_files("7.0", found))
    alone = read(tmp_path)
    write_json(tmp_path / "77_results.json", results_json(found))
    both = read(tmp_path)
    assert both.format == "rocprofv3-json"  # it says more: the bytes of a copy
    assert both.events.group_by("kind").len().sort("kind").equals(alone.events.group_by("kind").len().sort("kind"))
    assert both.unread[REASON] == 1
    assert both.meta["repeated"] == [tmp_path.name]


def test_a_copy_of_a_ranks_file_is_counted_once(tmp_path):
    for name, rank in (("a.json", 0), ("a (1).json", 0), ("b.json", 1)):
        write(tmp_path / name, 3, distributedInfo={"rank": rank})
    trace = read(tmp_path)
    assert dict(trace.events.group_by("rank").len().iter_rows()) == {0: 3, 1: 3}
    assert trace.unread == {REASON: 1}
    assert trace.meta["repeated"] == ["a.json"]


def test_a_folder_of_two_processes_stays_where_a_file_repeats_one_of_them(tmp_path):
    rng = random.Random(2)
    one, two = ([event(rng, i) for i in range(24)] for _ in range(2))  # the second has no kernel
    for pid, found in ((77, one), (78, two)):
        write_files(tmp_path, csv_files("7.0", found, pid))
    alone = read(tmp_path).events.height
    write_json(tmp_path / "77_results.json", results_json(one))
    both = read(tmp_path)
    assert (both.format, both.events.height, both.meta["repeated"]) == ("rocprofv3-csv", alone, ["77_results.json"])
    assert sorted(both.events["rank"].unique()) == [0, 1]


def test_two_runs_in_two_formats_are_two(tmp_path):
    rng = random.Random(3)
    one, two = ([event(rng, i) for i in range(24)] for _ in range(2))
    write_files(tmp_path, csv_files("7.0", one))
    write_json(tmp_path / "78_results.json", results_json(two))
    both = read(tmp_path)
    assert both.format == "rocprofv3-csv+rocprofv3-json"
    assert REASON not in both.unread
