"""The lanes of a timeline hold every event, one by one or together, and say what they leave out."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import TRACES, call, frame, on_gpu, op, trace_of

from rung.analysis.classified import classified
from rung.analysis.gaps import caused
from rung.analysis.lanes import MOST_ROWS, MOST_STREAMS, Lanes, lanes

SOME = settings(max_examples=15, deadline=None)
ONE_BY_ONE = {"gpu": 10**6, "host": 10**6, "beside": 10**6}


def of_side(found: Lanes, side: str) -> pl.DataFrame:
    return found.slices.join(found.lanes.filter(pl.col("side") == side).select("lane"), on="lane", how="semi")


@SOME
@given(TRACES, st.sampled_from([1, 2, 5, 10**6]))
def test_no_time_and_no_event_is_lost_however_few_slices_there_may_be(trace, most):
    found = lanes(trace, most=dict.fromkeys(ONE_BY_ONE, most))
    gpu, idle = of_side(found, "gpu"), of_side(found, "idle")
    assert gpu["busy_ns"].sum() == classified(trace)["dur"].sum()
    assert gpu["count"].sum() == classified(trace).height
    assert idle["busy_ns"].sum() == caused(trace)["gap_ns"].sum()
    assert found.slices["count"].sum() == found.events
    assert found.together == found.slices.filter(pl.col("count") > 1)["count"].sum()
    assert bool(found.together) <= bool(found.shorter_ns)


@SOME
@given(TRACES, st.sampled_from([1, 3, 10**6]))
def test_slices_lie_within_the_span_and_in_time_order(trace, most):
    found = lanes(trace, most=dict.fromkeys(ONE_BY_ONE, most))
    slices = found.slices
    assert ((slices["ts"] >= 0) & (slices["ts"] + slices["dur"] <= found.span_ns) & (slices["dur"] >= 0)).all()
    for _, row in slices.group_by("lane", "row", maintain_order=True):
        assert row["ts"].is_sorted()
    assert (slices["kind"] < found.kinds.height).all()


def test_short_events_side_by_side_are_one_slice_named_after_the_longest_and_long_ones_stay():
    short = [on_gpu(100 * k, 3, "k") for k in range(100)]
    found = lanes(
        trace_of(*short, on_gpu(10_000, 5, "longest"), on_gpu(20_000, 1_000_000, "long")), most=ONE_BY_ONE | {"gpu": 2}
    )
    gpu = of_side(found, "gpu")
    assert gpu.height == 2
    together, alone = gpu.rows(named=True)
    assert (together["count"], together["busy_ns"], together["ts"], together["dur"]) == (101, 305, 0, 10_005)
    assert found.kinds["name"][together["kind"]] == "longest"
    assert (alone["count"], alone["dur"]) == (1, 1_000_000)
    assert found.together == 101
    assert set(found.shorter_ns) == {"gpu"}
    assert 5 < found.shorter_ns["gpu"] <= 1_000_000


def test_a_call_lies_below_the_one_that_it_is_within():
    trace = trace_of(
        op(0, 100, "outer", dims="[[2,3]]", dtypes='["float"]'), op(10, 50, "inner"), call(20, 5), frame(0, 200, "nn.Module: Net_0"),
        frame(0, 300, "model.py(1): main"),
    )  # fmt: skip
    found = lanes(trace)
    named = found.slices.sort("row").join(
        found.kinds.with_row_index("kind").cast({"kind": pl.Int64}), on="kind", how="left", maintain_order="left"
    )
    assert named.select("row", "name", "category").rows() == [
        (0, "Net_0", "module"), (1, "outer", "cpu_op"), (2, "inner", "cpu_op"), (3, "hipLaunchKernel", "runtime"),
    ]  # fmt: skip
    assert named["detail"].to_list() == ["", "2x3 fp32", "", ""]


def test_a_slice_says_its_operator_and_inputs_and_a_gap_its_cause():
    trace = trace_of(
        op(0, 30, "aten::mm", dims="[[2,3],[3,4]]", dtypes='["float","float"]'), call(10, 5, 1), on_gpu(20, 10, correlation=1),
        op(40, 90, "aten::add"), call(110, 5, 2), on_gpu(120, 10, correlation=2),
    )  # fmt: skip
    found = lanes(trace)
    details = dict(
        found.kinds.select("name", "detail").filter(pl.col("name").is_in(["k", "host"])).unique("name").iter_rows()
    )
    assert "aten::mm 2x3 3x4 fp32" in found.kinds["detail"].to_list()
    assert details["host"] == "aten::add"
    assert found.lanes["where"].to_list() == ["GPU 0 idle", "GPU 0 stream 0", "thread 1"]


def test_what_has_no_lane_is_counted():
    streams = [on_gpu(10 * k, 5 + k, stream=k) for k in range(MOST_STREAMS + 3)]
    deep = [op(k, 1000 - 2 * k, "within") for k in range(MOST_ROWS + 2)]
    found = lanes(trace_of(*streams, *deep))
    assert found.hidden == {"on further streams": 3, "within too many others": 2}
    assert (found.lanes["side"] == "gpu").sum() == MOST_STREAMS


def test_a_trace_without_events_has_no_lanes():
    found = lanes(trace_of())
    assert (found.lanes.height, found.slices.height, found.span_ns) == (0, 0, 0)


def test_lanes_are_in_the_order_of_their_numbers():
    found = lanes(
        trace_of(*(on_gpu(10 * k, 5, device=k % 2, stream=stream) for k, stream in enumerate((100, 7, 10, 7))))
    )
    assert found.lanes.filter(pl.col("side") == "gpu")["where"].to_list() == [
        "GPU 0 stream 10", "GPU 0 stream 100", "GPU 1 stream 7",
    ]  # fmt: skip


def test_an_event_as_long_as_the_limit_has_a_slice_of_its_own():
    trace = trace_of(on_gpu(0, 4), *(on_gpu(ts, 1) for ts in (100, 101, 102)))
    found = lanes(trace, most=ONE_BY_ONE | {"gpu": 2})
    assert found.shorter_ns == {"gpu": 4}
    assert of_side(found, "gpu").select("ts", "dur", "count").rows() == [(0, 4, 1), (100, 3, 3)]
