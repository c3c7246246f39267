"""Why a GPU was idle, gap by gap: made traces whose causes are known, and real ones."""

from pathlib import Path

import polars as pl
import pytest
from random_traces import call, frame, on_gpu, op, trace_of

from rung.analysis.breakdown import breakdown
from rung.analysis.gaps import gaps, idle
from rung.analysis.launches import launches
from rung.analysis.streams import streams
from rung.trace import read

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
US = 1000


def only_gap(*events):
    (row,) = gaps(trace_of(*events)).to_dicts()
    return row


def two_kernels(launched, at, **more):
    """A kernel until 100 us, a second that is launched and begins at these times."""
    return [on_gpu(0, 100 * US), call(launched, 4 * US, 7), on_gpu(at, 10 * US, "second", correlation=7, **more)]


def test_the_host_was_late_and_what_it_did_is_named():
    row = only_gap(
        op(90 * US, 80 * US, "aten::add"),
        frame(50 * US, 200 * US, "/env/site-packages/model/net.py(7): forward"),
        frame(60 * US, 180 * US, "torch/nn/functional.py(9): linear"),
        *two_kernels(160 * US, 170 * US),
    )
    assert (row["cause"], row["during"], row["call_site"]) == ("host", "aten::add", "model/net.py(7): forward")
    assert (row["gap_ns"], row["next"], row["ts"], row["end"]) == (70 * US, "second", 100 * US, 170 * US)


def test_a_step_is_not_what_the_host_did():
    step = {"kind": "annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 900 * US}
    assert only_gap(step, *two_kernels(160 * US, 170 * US))["during"] is None


def test_a_wait_for_the_gpu_kept_the_host_from_queueing():
    waits = call(50 * US, 55 * US, name="hipStreamSynchronize")
    row = only_gap(op(40 * US, 70 * US, "aten::item"), waits, *two_kernels(160 * US, 170 * US))
    assert (row["cause"], row["during"]) == ("sync", "hipStreamSynchronize")


def test_a_wait_of_the_profilers_is_no_fault_of_the_program():
    step = {"kind": "annotation", "name": "ProfilerStep#3", "ts": 0, "dur": 120 * US}
    end = {"kind": "annotation", "name": "rung: end of step", "ts": 40 * US, "dur": 70 * US}
    row = only_gap(step, end, call(50 * US, 55 * US, name="hipDeviceSynchronize"), *two_kernels(160 * US, 170 * US))
    assert (row["cause"], row["during"]) == ("profiler", "hipDeviceSynchronize")


@pytest.mark.parametrize("loader", [
    op(90 * US, 69 * US, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    frame(90 * US, 69 * US, "/env/torch/utils/data/dataloader.py(701): __next__"),
], ids=["operator", "frame"])  # fmt: skip
def test_data_loading(loader):
    assert only_gap(loader, *two_kernels(160 * US, 170 * US))["cause"] == "data loading"


@pytest.mark.parametrize(
    ("at", "cause"), [(105 * US, "dispatch"), (150 * US, "queued")], ids=["within 10 us", "later than that"]
)
def test_work_that_was_queued_is_no_fault_of_the_host(at, cause):
    assert only_gap(*two_kernels(20 * US, at))["cause"] == cause


@pytest.mark.parametrize(
    ("launched", "at", "cause"),
    [(150 * US, 900 * US, "queued"), (800 * US, 900 * US, "host"), (110 * US, 170 * US, "host")],
    ids=["long behind its launch", "soon after a late launch", "a slow start is still the launch's"],
)
def test_work_that_waits_behind_its_late_launch_waits_for_something_else(launched, at, cause):
    trace = trace_of(*two_kernels(launched, at))
    assert gaps(trace)["cause"].to_list() == [cause]
    assert launches(trace)["host_bound_ns"][0] == (at - 100 * US if cause == "host" else 0)
    assert breakdown(trace, steps=1).parts["launch_gap"] == launches(trace)["host_bound_ns"][0]


def test_a_launch_just_before_the_gpu_ran_dry_takes_as_long_as_any():
    late = [call(200 * US, 4 * US, 8), on_gpu(220 * US, 10 * US, correlation=8)]  # 20 us on an idle GPU
    causes = gaps(trace_of(*two_kernels(95 * US, 112 * US), *late)).sort("ts")["cause"].to_list()
    assert causes == ["launch latency", "host"]


def test_gaps_between_the_kernels_of_a_graph_are_its_own():
    replay = call(0, 5 * US, 7, "hipGraphLaunch")
    row = only_gap(replay, on_gpu(10 * US, US, correlation=7), on_gpu(14 * US, US, correlation=7))
    assert row["cause"] == "inside a graph"


def test_a_gap_between_two_replays_is_inside_of_neither():
    replays = [call(0, 5 * US, 7, "hipGraphLaunch"), call(6 * US, 2 * US, 8, "hipGraphLaunch")]
    assert (
        only_gap(*replays, on_gpu(10 * US, US, correlation=7), on_gpu(90 * US, US, correlation=8))["cause"] == "queued"
    )


def test_unknown_launches_are_said_to_be_so():
    assert only_gap(on_gpu(0, 5), on_gpu(9, 5))["cause"] == "no launches"
    linked = [call(0, 1, 1), on_gpu(1, 4, correlation=1)]
    assert only_gap(*linked, on_gpu(9, 5, correlation=2))["cause"] == "launched outside"


def test_causes_are_summed_per_step():
    trace = trace_of(*two_kernels(160 * US, 170 * US), call(200 * US, US, 9), on_gpu(210 * US, US, correlation=9))
    row = idle(trace, steps=2).row(0, named=True)
    assert (row["cause"], row["count"], row["time_ns"], row["share"]) == ("host", 1.0, 50 * US, 1.0)
    assert row["longest_ns"] == 70 * US


def test_a_stream_waits_for_collectives_for_others_and_for_nothing():
    table = streams(
        trace_of(
            on_gpu(0, 10), on_gpu(10, 20, "ncclDevKernel_Generic", stream=1), on_gpu(30, 5, stream=2), on_gpu(40, 10)
        )
    )
    row = table.filter(pl.col("stream") == 0).row(0, named=True)
    assert [row[f"{name}_ns"] for name in ("total", "busy", "idle", "collective", "other_stream", "nothing")] == [
        50, 20, 30, 20, 5, 5,
    ]  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_real_traces_wait_for_what_is_known_of_them():
    causes = {}
    for name in ("mi300_vit", "mi300_vllm_graph_replay", "h100_timesformer", "mi300_sglang_decode"):
        table = idle(read(SHARED / f"{name}.json.gz"))
        causes[name] = dict(table.group_by("cause").agg(pl.col("share").sum()).iter_rows())
    assert causes["mi300_vit"]["host"] > 0.9  # eager, 5 us kernels
    assert "host" not in causes["mi300_vllm_graph_replay"]  # one replay of 421 kernels
    # Launched at 43 us behind a hipStreamWaitEvent, begun at 463 ms: read off the file.
    assert causes["mi300_sglang_decode"]["queued"] > 0.99
    assert causes["h100_timesformer"]["dispatch"] > 0.5  # the host is far ahead; CUPTI sees 1 to 2 us between kernels
