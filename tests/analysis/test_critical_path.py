"""The critical path: known answers, and identities on whatever traces."""

import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from made_ranks import Rank
from test_collectives import two_ranks
from test_diff import traces

from rung.analysis import event_graph
from rung.analysis.critical_path import critical_path, solved
from rung.analysis.host_order import in_order
from rung.analysis.timeline import timeline
from rung.analysis.what_if import saved, what_if
from rung.report.headlines import critical_path_line, what_if_line
from rung.trace import read

DDP = Path(__file__).parents[1] / "data" / "ddp"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


def made(folder, *kernels, waits=()):
    """A rank whose kernels are (operator, launch, start, duration, stream) in µs; waits: times of cudaStreamWaitEvent."""
    rank = Rank(0, 1)
    for op, launch, ts, dur, stream in kernels:
        rank.kernel(op, launch, ts, dur)
        rank.events[-1]["args"]["stream"] = stream
    for at in waits:
        rank.add("cuda_runtime", "cudaStreamWaitEvent", at, 1)
    rank.write(folder)
    return read(folder / "rank0.json")


def on_path(trace, what=None):
    table = critical_path(trace)
    rows = table.filter(pl.col("path_ns") > 0)
    return {row["name"]: row["path_ns"] for row in rows.to_dicts() if what is None or row["what"] == what}


def test_queued_kernels_set_the_pace_of_a_busy_gpu(tmp_path):
    trace = made(tmp_path, ("a", 0, 10, 100, 7), ("b", 5, 110, 200, 7), ("c", 10, 310, 50, 7))
    assert on_path(trace) == {"a": 100_000, "b": 200_000, "c": 50_000}
    (b,) = what_if(trace).filter(pl.col("name") == "b").to_dicts()
    assert b["saved_share"] == pytest.approx(200 / 350)


def test_a_launch_long_before_the_first_kernel_holds_nothing_back(tmp_path):
    """The GPU still did what was launched before the recording, so that the first launch seems to take long."""
    trace = made(tmp_path, ("a", 0, 500, 100, 7), ("b", 5, 600, 200, 7), ("c", 10, 800, 50, 7))
    saved_by = dict(what_if(trace).select("name", "saved_share").iter_rows())
    assert saved_by["a"] == pytest.approx(95 / 350)  # b was called 5 µs after it
    assert saved_by["b"] == pytest.approx(200 / 350)


def test_the_host_sets_the_pace_where_the_gpu_waits_for_launches(tmp_path):
    trace = made(tmp_path, ("a", 0, 10, 5, 7), ("b", 100, 110, 5, 7), ("c", 200, 210, 5, 7))
    table = critical_path(trace)
    host = table.filter(pl.col("what") == "host")["path_ns"].sum()
    assert host == 190_000  # from the first kernel at 10 to the launch of the last at 200
    assert what_if(trace)["what"][0] == "host"
    assert "the host" in what_if_line(what_if(trace))
    assert table.filter(pl.col("name") == "b", pl.col("what") == "computation")["slack_ns"].item() == 95_000


def test_a_wait_between_streams_puts_the_longer_branch_on_the_path(tmp_path):
    """d on stream 7 waits for the copy stream's b: b is on the path, and a, beside it, has slack."""
    kernels = [("start", 0, 10, 10, 7), ("a", 4, 20, 100, 7), ("b", 8, 20, 300, 9), ("d", 14, 321, 50, 7)]
    joined = made(tmp_path, *kernels, waits=[12])
    assert set(on_path(joined, "computation")) == {"b", "d"}
    slack = dict(critical_path(joined).filter(pl.col("what") == "computation").select("name", "slack_ns").iter_rows())
    assert slack["a"] == 200_000
    assert slack["b"] == slack["d"] == 0


def test_a_wait_holds_for_the_thread_that_goes_on(tmp_path):
    """Autograd's thread waits for the copy stream's b and launches nothing more; d is launched on the caller's thread."""
    rank = Rank(0, 1)
    for op, launch, ts, dur, stream in (("a", 8, 20, 10, 7), ("b", 12, 20, 300, 9), ("d", 40, 321, 50, 7)):
        rank.kernel(op, launch, ts, dur)
        rank.events[-1]["args"]["stream"] = stream
        for event in rank.events[-3:-1] if op != "d" else ():
            event["tid"] = 2
    rank.add("cuda_runtime", "cudaStreamWaitEvent", 16, 1, tid=2)
    rank.write(tmp_path)
    trace = read(tmp_path / "rank0.json")
    assert on_path(trace, "computation") == {"b": 300_000, "d": 50_000}
    (b,) = what_if(trace).filter(pl.col("name") == "b").to_dicts()
    assert b["saved_share"] > 0.7


def test_a_launch_that_takes_long_itself_is_the_hosts_time(tmp_path):
    """b's launch loads its code for 500 µs and b begins only then: without the host's time it comes after a."""
    rank = Rank(0, 1)
    rank.kernel("a", 0, 10, 5)
    rank.kernel("c", 20, 30, 5)
    rank.kernel("b", 40, 545, 5)
    rank.events[-2]["dur"] = 500.0
    rank.kernel("d", 560, 570, 5)
    rank.write(tmp_path)
    trace = read(tmp_path / "rank0.json")
    assert what_if(trace).row(0, named=True)["what"] == "host"
    assert what_if(trace)["saved_share"][0] > 0.9


def test_a_late_rank_is_on_the_path_and_the_one_that_waits_has_slack(tmp_path):
    trace = two_ranks(tmp_path, shift=1234.0)
    table = critical_path(trace)
    mm = {row["rank"]: row for row in table.filter(pl.col("name") == "aten::mm").to_dicts()}
    assert mm[1]["path_ns"] >= 4_000_000
    assert mm[0]["path_ns"] < 2_000_000
    reduced = table.filter(pl.col("name") == "all_reduce")
    assert reduced["total_ns"].to_list() == [2_000_000, 2_000_000]  # from when both are there
    assert reduced["path_ns"].sum() >= 1_000_000


def test_a_synchronizing_call_waits_for_the_gpu(tmp_path):
    rank = Rank(0, 1)
    rank.kernel("a", 0, 10, 500)
    rank.add("cuda_runtime", "cudaDeviceSynchronize", 20, 495)
    rank.kernel("b", 530, 540, 10)
    rank.write(tmp_path)
    table = on_path(read(tmp_path / "rank0.json"))
    assert table["a"] == 500_000


def test_the_order_of_calls_is_found_as_quickly_for_many_threads_as_for_one():
    def seconds(threads):
        ts = np.arange(20_000)
        host = pl.DataFrame({"rank": 0 * ts, "thread": ts % threads, "ts": ts, "idle_from": ts - 5, "idle_to": ts})
        begin = time.process_time()
        in_order(host, 0, ts, ts)
        return time.process_time() - begin

    assert seconds(500) < 5 * seconds(1) + 0.1


def test_too_many_events_are_refused_with_a_word_or_cut_to_the_last_step(tmp_path, monkeypatch):
    monkeypatch.setattr(event_graph, "MOST_EVENTS", 2)
    trace = made(tmp_path, ("a", 0, 10, 100, 7), ("b", 5, 110, 200, 7), ("c", 10, 310, 50, 7))
    (row,) = critical_path(trace).to_dicts()
    assert row["what"] == "none"
    assert "more than 2 GPU events" in critical_path_line(critical_path(trace))
    assert what_if(trace).is_empty()
    rank = Rank(0, 1)
    for step in (0, 1):
        rank.step(step)
        for i in range(2):
            rank.kernel(f"op{step}", step * 10_000 + 10 * i, step * 10_000 + 50 + 100 * i, 100)
    rank.write(tmp_path)
    table = critical_path(read(tmp_path / "rank0.json"))
    assert set(table["of"]) == {"step 1"}
    assert "op0" not in table["name"].to_list()


def test_of_work_that_took_no_time_nothing_is_said(tmp_path):
    assert critical_path_line(critical_path(made(tmp_path, ("a", 0, 10, 0, 7)))) == ""


def test_without_launches_there_is_no_path():
    assert critical_path(read(DDP / "ranks2-slow-gpu" / "rank0.json.gz")).height > 0
    from test_diff import trace_of

    assert critical_path(trace_of({"ts": 0, "dur": 5, "kind": "kernel", "device": 0})).is_empty()


@given(traces)
def test_identities(trace):
    table, graph, pace = solved(trace)
    if pace is None:
        return
    ones = np.ones(graph.nodes.height)
    assert table["path_ns"].sum() == pace.total
    assert pace.length(ones) == pace.total  # what was recorded comes out when nothing is changed
    assert (pace.delay >= 0).all()
    assert (pace.slack() >= 0).all()
    assert (table.filter(pl.col("path_ns") > 0)["slack_ns"].fill_null(0) == 0).all()
    shares = what_if(trace)["saved_share"].to_list()
    assert all(0 <= share <= 1 for share in shares)
    assert saved(pace, graph.nodes, [("computation", None)], 0.5) <= saved(
        pace, graph.nodes, [("computation", None)], 0.0
    )


def test_recorded_ranks_end_when_their_timelines_do():
    trace = read(DDP / "ranks2-slow-host")
    table = critical_path(trace)
    rows = timeline(trace).filter(pl.col("step").is_null())
    assert table["path_ns"].sum() >= rows["total_ns"].to_numpy().max()
    # the sleep of 40 ms lies before the launch of aten::pow, on the path of rank 1
    first = table.row(0, named=True)
    assert (first["rank"], first["what"], first["name"]) == (1, "host", "aten::pow")
    assert first["path_ns"] > 38_000_000


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
@pytest.mark.parametrize(
    "name", ["mi300_timesformer", "h100_timesformer", "mi300_vllm_graph_replay", "mi300_resnet_fsdp_ckpt"]
)
def test_the_path_of_real_traces_is_their_timeline(name):
    trace = read(SHARED / f"{name}.json.gz")
    total = timeline(trace).filter(pl.col("step").is_null())["total_ns"].item()
    assert critical_path(trace)["path_ns"].sum() == total
