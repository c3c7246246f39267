"""rocpd databases: every row of every table of events, alike with and without views, of one process or of many."""

import json
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocpd_schema import TABLES
from rocpd_views import VIEWS
from rocpd_writer import GPU_AGENTS, Writer

from rung.trace.databases import rocpd
from rung.trace.databases.rocpd_statistics import STATISTICS, kernel_statistics
from rung.trace.table import COUNTERS, SCHEMA

SHARED = Path(__file__).parents[4] / "shared" / "data" / "rocpd"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no recorded databases beside the project")
COLUMNS = ["kind", "ts", "dur", "name", "device", "stream", "correlation", "external_id", "bytes", "tid"]

times = st.integers(0, 2**61)
lengths = st.one_of(st.just(1), st.integers(1, 2**40))
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)
ids = st.integers(0, 2**63 - 1)
kernel = st.tuples(st.just("dispatch"), names, times, lengths, ids, st.integers(0, 1), st.integers(0, 3), ids)
copy = st.tuples(st.just("copy"), names, times, lengths, ids, st.sampled_from([0, *GPU_AGENTS]), ids)
region = st.tuples(
    st.just("region"), names, times, st.one_of(st.just(0), lengths), ids,
    st.sampled_from(["HIP_RUNTIME_API_EXT", "HSA_CORE_API", "RCCL_API", "MARKER_CORE_RANGE_API", "KFD_EVENT"]),
    st.one_of(st.none(), names),
)  # fmt: skip
allocation = st.tuples(st.just("allocation"), st.sampled_from(["ALLOC", "FREE"]), times, lengths, ids, ids)
events = st.lists(st.one_of(kernel, copy, region, allocation), max_size=25)

KINDS = {"HIP_RUNTIME_API_EXT": "runtime", "HSA_CORE_API": "runtime", "RCCL_API": "cpu_op",
         "MARKER_CORE_RANGE_API": "annotation", "KFD_EVENT": "other"}  # fmt: skip


def put(writer, event):
    """Writes an event and says what is to be read of it."""
    what, name, ts, dur, stack = event[:5]
    tid = str(writer.pid)
    if what == "dispatch":
        device, stream, external = event[5:]
        writer.dispatch(name, ts, ts + dur, stack=stack, device=device, stream=stream, external=external)
        return ("kernel", ts, dur, name, device, stream, stack, external or None, None, tid)
    if what == "copy":
        target, size = event[5:]
        writer.copy(name, ts, ts + dur, stack=stack, source=0, target=target, size=size)
        device = None if target == 0 else GPU_AGENTS.index(target)
        return ("memcpy", ts, dur, name, device, 0, stack, None, size, tid)
    if what == "allocation":
        writer.allocation(name, "REAL", ts, ts + dur, stack=stack, size=event[5])
        read = {"ALLOC": "MEMORY_ALLOCATION_ALLOCATE", "FREE": "MEMORY_ALLOCATION_FREE"}[name]
        return ("allocation", ts, dur, read, 0, None, stack, None, event[5], tid)
    category, message = event[5:]
    writer.region(category, name, ts, ts + dur, stack=stack, message=message)
    shown = message if message is not None and category.startswith("MARKER") else name
    return (KINDS[category], ts, dur, shown, None, None, stack, None, None, tid)


def rows(trace):
    return sorted(trace.events.select(COLUMNS).rows(), key=repr)


@settings(max_examples=12, deadline=None)
@given(events=events)
def test_any_events_are_read_back_equal_with_and_without_views(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("rocpd")
    traces = []
    for views in (True, False):
        with Writer(folder / f"{views}.db", views=views) as writer:
            expected = sorted((put(writer, event) for event in events), key=repr)
        trace = rocpd.read(folder / f"{views}.db")
        assert rows(trace) == expected
        assert dict(trace.events.schema) == SCHEMA
        assert trace.unread == {}
        traces.append(trace)
    assert traces[0].events.equals(traces[1].events)
    assert traces[0].devices == traces[1].devices
    assert not [path for path in folder.iterdir() if path.suffix != ".db"]


def test_the_writer_has_the_schema_of_rocprofv3(tmp_path):
    if not SHARED.is_dir():
        pytest.skip("no recorded databases beside the project")
    ours = sqlite3.connect(Writer(tmp_path / "t.db").close())
    real = sqlite3.connect(f"{(SHARED / '1000_results.db').as_uri()}?immutable=1", uri=True)
    guid = real.execute("SELECT value FROM rocpd_metadata WHERE tag = 'uuid'").fetchone()[0]
    mine = ours.execute("SELECT value FROM rocpd_metadata WHERE tag = 'uuid'").fetchone()[0]
    for table in TABLES:
        columns = real.execute(
            f"SELECT name, type, \"notnull\" FROM pragma_table_info('rocpd_{table}{guid}')"
        ).fetchall()
        got = ours.execute(f"SELECT name, type, \"notnull\" FROM pragma_table_info('rocpd_{table}{mine}')").fetchall()
        assert got == columns, table
    listed = "SELECT name FROM sqlite_master WHERE type = 'view'"
    assert {name for (name,) in ours.execute(listed)} == {name for (name,) in real.execute(listed)}
    for view in VIEWS:
        query = f"SELECT * FROM `{view}` LIMIT 0"
        assert [c[0] for c in ours.execute(query).description] == [c[0] for c in real.execute(query).description], view


@needs_shared
def test_the_recorded_databases_give_their_counts():
    trace = rocpd.read(SHARED / "1000_results.db")
    counts = dict(trace.events.group_by("kind").len().rows())
    assert counts == {"kernel": 12, "memcpy": 1, "allocation": 2, "runtime": 12, "annotation": 2}
    assert trace.unread == {}
    kernels = trace.events.filter(pl.col("kind") == "kernel")
    assert kernels.row(0)[:4] == (1551000000006000, 90000, "kernel", "Cijk_Ailk_Bljk_BBS_BH_MT128x128")
    assert kernels["device"].to_list() == [0] * 12  # agent 4, the first GPU
    assert set(trace.events.filter(pl.col("kind") == "annotation")["name"]) == {"step 0", "a mark"}
    linked = kernels.join(trace.events.filter(pl.col("kind") == "runtime"), on="correlation")
    assert (linked["ts_right"] < linked["ts"]).all()
    assert linked.height == 12
    assert trace.counters["value"].to_list() == [1216.0] * 12  # four instances of 304
    assert dict(trace.counters.schema) == COUNTERS
    assert trace.devices[0]["name"] == "AMD Instinct MI300X"
    assert trace.devices[0]["cu_count"] == 304


@needs_shared
def test_several_databases_are_the_ranks_of_a_run():
    trace = rocpd.read_many([SHARED / "1001_results.db", SHARED / "1000_results.db"])
    assert dict(trace.events.group_by("rank").len().rows()) == {0: 29, 1: 29}
    assert trace.events["rank"][0] == 1  # as the environment says, not as the files are given
    assert trace.meta["ranks_by_order"] is False
    linked = trace.events.filter(pl.col("kind") == "kernel").join(
        trace.events.filter(pl.col("kind") == "runtime"), on="correlation"
    )
    assert linked.height == 24  # ids that both processes use join within each
    assert (linked["pid"] == linked["pid_right"]).all()


def test_ranks_that_no_environment_says_are_the_order_of_the_files(tmp_path):
    paths = []
    for pid in (7, 5):
        with Writer(tmp_path / f"{pid}.db", pid=pid) as writer:
            writer.dispatch("k", 1, 2, stack=1, counters=[("SQ_WAVES", 1.0)])
        paths.append(writer.path)
    trace = rocpd.read_many(paths)
    assert trace.events.select("pid", "rank", "correlation").rows() == [("7", 0, 1), ("5", 1, 1 + (1 << 48))]
    assert trace.counters["correlation"].to_list() == [1, 1 + (1 << 48)]
    assert trace.meta["ranks_by_order"] is True


def test_processes_merged_into_one_file_are_all_read(tmp_path):
    path = tmp_path / "merged.db"
    for pid, views in ((100, True), (200, False)):
        with Writer(path, pid=pid, views=views) as writer:
            writer.dispatch(f"kernel of {pid}", 10, 20, stack=1)
            writer.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 5, 6, stack=1)
    trace = rocpd.read(path)
    gpu = trace.events.filter(pl.col("kind") == "kernel")
    assert gpu.select("name", "pid").rows() == [("kernel of 100", "100"), ("kernel of 200", "200")]
    calls = trace.events.filter(pl.col("kind") == "runtime")
    assert gpu["correlation"].to_list() == calls["correlation"].to_list()
    assert gpu["correlation"].n_unique() == 2


def test_a_device_is_its_place_among_the_gpus(tmp_path):
    with Writer(tmp_path / "t.db") as writer:
        writer.dispatch("k", 1, 2, device=1)
        writer.copy("MEMORY_COPY_DEVICE_TO_HOST", 3, 4, source=GPU_AGENTS[1], target=0)
        writer.copy("MEMORY_COPY_HOST_TO_HOST", 5, 6, source=0, target=0)
    trace = rocpd.read(writer.path)
    assert trace.events["device"].to_list() == [1, 1, None]
    assert trace.events["stream"].to_list() == [0, 0, 0]
    assert [device["id"] for device in trace.devices] == list(GPU_AGENTS)


def test_what_the_file_does_not_explain_is_still_an_event(tmp_path):
    with Writer(tmp_path / "t.db") as writer:
        writer.dispatch("k", 1, 2, stack=3)
        writer.region("HIP_RUNTIME_API_EXT", "hipMalloc", 1, 2)
        for table in ("info_kernel_symbol", "info_agent", "event", "info_process", "info_thread", "string"):
            writer.db.execute(f"DELETE FROM `rocpd_{table}{writer.suffix}`")
    events = rocpd.read(writer.path).events
    assert events["name"].to_list() == ["kernel 1", "region 4"]
    assert events["kind"].to_list() == ["kernel", "other"]
    assert events["correlation"].to_list() == [None, None]
    assert events["pid"].to_list() == ["1000", "1000"]


def test_rows_of_no_use_are_counted_by_reason(tmp_path):
    with Writer(tmp_path / "t.db") as writer:
        writer.dispatch("k", 20, 10)
        writer.dispatch("k", "soon", 10)
        writer.dispatch("k", -(2**63), 2**63 - 1)
        writer.dispatch("k", 10, 20, counters=[("SQ_WAVES", 2.5), ("SQ_WAVES", 4.0)])
        writer.insert("pmc_event", event_id=None, pmc_id=1, value=1.0)
        writer.insert("pmc_event", event_id=999, pmc_id=1, value=1.0)
        writer.db.execute(f"CREATE TABLE `rocpd_hip_event{writer.suffix}` (id INTEGER PRIMARY KEY)")
        writer.db.execute(f"INSERT INTO `rocpd_hip_event{writer.suffix}` VALUES (1), (2)")
    trace = rocpd.read(writer.path)
    assert trace.events["ts"].to_list() == [10]
    assert trace.counters["value"].to_list() == [6.5]
    assert trace.unread == {
        "negative duration": 1,
        "no readable start or duration": 2,
        "counter without an event or a number": 1,
        "counter of no kernel": 1,
        "row of rocpd_hip_event": 2,
    }
    assert trace.unread_ns == {"negative duration": 10}


def test_secrets_of_the_recorded_process_are_not_kept(tmp_path):
    secrets = ["hf_abcdefgh12345678", "hunter2", "s3cret", "swordfish"]
    environment = {"RANK": "3", "HF_TOKEN": secrets[0], "NCCL_DEBUG": "INFO", "NCCL_PASSWORD": secrets[1],
                   "HOME": "/home/someone", "CUDA_PROXY": f"http://me:{secrets[2]}@proxy"}  # fmt: skip
    with Writer(
        tmp_path / "t.db", environment=json.dumps(environment), command=f"train --api-key {secrets[3]} --lr=0.1"
    ) as writer:
        writer.dispatch("k", 1, 2)
    trace = rocpd.read(writer.path)
    process = trace.meta["processes"][0]
    assert process["rank"] == 3
    assert trace.events["rank"].to_list() == [3]
    assert process["environment"]["NCCL_DEBUG"] == "INFO"
    assert process["command"] == "train --api-key (redacted) --lr=0.1"
    assert not any(secret in repr(trace.meta) for secret in [*secrets, "someone"])


def test_ids_with_gaps_and_more_than_a_batch_are_all_read(tmp_path):
    with Writer(tmp_path / "t.db", views=False) as writer:
        writer.many_dispatches(150_000, kernels=3)
        table = f"`rocpd_kernel_dispatch{writer.suffix}`"
        writer.db.execute(f"UPDATE {table} SET id = id + 9000000000000000000 WHERE id > 145000")
        writer.db.execute(f"DELETE FROM {table} WHERE id BETWEEN 105000 AND 140000 AND id % 64")
        expected = writer.db.execute(
            f'SELECT count(*), sum(start - 1551000000000000), sum("end" - start) FROM {table}'
        ).fetchone()
    events = rocpd.read(writer.path).events
    assert (events.height, (events["ts"] - 1551000000000000).sum(), events["dur"].sum()) == expected


@settings(max_examples=6, deadline=None)
@given(
    kernels=st.lists(st.tuples(st.sampled_from("abc"), times, st.integers(-3, 2**40)), max_size=40),
    views=st.booleans(),
)
def test_kernel_statistics_are_those_of_the_whole_trace(tmp_path_factory, kernels, views):
    path = tmp_path_factory.mktemp("rocpd") / "t.db"
    with Writer(path, views=views) as writer:
        for name, ts, dur in kernels:
            writer.dispatch(name, ts, ts + dur)
    table = kernel_statistics(path)
    assert dict(table.schema) == STATISTICS
    events = rocpd.read(path).events
    dur = pl.col("dur")
    expected = events.group_by("name").agg(
        pl.len().cast(pl.Int64), dur.sum(), dur.mean().alias("mean"), dur.median().alias("median"),
        dur.min().alias("min"), dur.max().alias("max"),
    )  # fmt: skip
    assert sorted(table.drop("share").rows()) == sorted(expected.rows())
    assert table["total"].is_sorted(descending=True)
    assert table["share"].sum() == pytest.approx(1 if events["dur"].sum() else 0)


def test_kernel_statistics_count_a_name_once_over_processes(tmp_path):
    for pid in (1, 2):
        with Writer(tmp_path / "t.db", pid=pid, views=False) as writer:
            writer.dispatch("same", 0, 10 * pid)
    assert kernel_statistics(tmp_path / "t.db").row(0)[:7] == ("same", 2, 30, 15.0, 15.0, 10, 20)
