"""What must hold for any trace whatever: no GPU time is lost or counted twice in any table."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import TRACES

from rung.analysis.analyses import ANALYSES, table
from rung.analysis.breakdown import breakdown
from rung.analysis.calls import host_calls
from rung.analysis.gaps import dry_times
from rung.analysis.origins import origins
from rung.analysis.stabbing import open_at

RANKINGS = ("categories", "kernels", "ops", "modules", "layers", "call_sites", "durations", "roofline")


@settings(max_examples=15, deadline=None)
@given(TRACES)
def test_a_ranking_adds_up_to_the_durations_of_all_gpu_events(trace):
    total = origins(trace)["dur"].sum()
    for name in RANKINGS:
        answer = table(name, trace)
        assert answer["time_ns"].sum() == total, name
        if total:
            assert answer["share"].sum() == pytest.approx(1.0), name
        if "cumulative_share" in answer.columns and total:
            assert answer.filter(pl.col("time_ns") > 0)["cumulative_share"][-1] == pytest.approx(1.0), name


@settings(max_examples=15, deadline=None)
@given(TRACES)
def test_idle_by_cause_by_gap_and_by_stream_is_the_idle_time_of_the_timeline(trace):
    idle = table("timeline", trace).filter(pl.col("step").is_null())["idle_ns"].sum()
    assert table("idle", trace)["time_ns"].sum() == idle
    assert table("gaps", trace)["gap_ns"].sum() == idle
    assert (dry_times(trace)["end"] - dry_times(trace)["ts"]).sum() == idle
    assert table("launches", trace)["gap_ns"].sum() == idle
    late = table("gaps", trace).filter(pl.col("cause").is_in(["host", "sync", "data loading"]))["gap_ns"].sum()
    assert table("launches", trace)["host_bound_ns"].sum() == late
    parts = breakdown(trace, steps=1)
    if parts.clock == "gpu" and origins(trace)["device"].n_unique() == 1:  # the page says the same
        assert parts.parts["launch_gap"] == late
        assert parts.parts["launch_gap"] + parts.parts["idle"] == idle
    for row in table("streams", trace).to_dicts():
        assert row["idle_ns"] == row["collective_ns"] + row["other_stream_ns"] + row["nothing_ns"]
        assert row["total_ns"] == row["busy_ns"] + row["idle_ns"]


@settings(max_examples=15, deadline=None)
@given(TRACES)
def test_each_gpu_event_has_one_origin_inside_the_trace(trace):
    found, calls = origins(trace), host_calls(trace)
    assert found.height == trace.events.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"])).height
    linked = found.filter("linked")
    launch = calls[linked["launch"]] if linked.height else calls.clear()
    assert launch["correlation"].equals(linked["correlation"], null_equal=False) or linked.is_empty()
    assert set(calls["kind"].gather(found["op"]).drop_nulls().to_list()) <= {"cpu_op"}
    assert found.filter("graph")["op"].null_count() == found.filter("graph").height


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.sampled_from("ab")), max_size=12)


@given(SPANS, st.lists(st.tuples(st.integers(-2, 42), st.sampled_from("abc")), min_size=1, max_size=6))
def test_what_is_open_at_a_moment_is_the_latest_begun_that_has_not_ended(spans, moments):
    nested = [s for i, s in enumerate(spans) if all(_nest(s, other) for other in spans[:i])]
    table = pl.DataFrame(
        [{"rank": 0, "pid": "1", "tid": tid, "ts": ts, "end": ts + dur} for ts, dur, tid in nested],
        schema={"rank": pl.Int32, "pid": pl.String, "tid": pl.String, "ts": pl.Int64, "end": pl.Int64},
    )
    asked = pl.DataFrame(
        [{"rank": 0, "pid": "1", "tid": tid, "at": at} for at, tid in moments],
        schema={"rank": pl.Int32, "pid": pl.String, "tid": pl.String, "at": pl.Int64},
    )
    for row, (at, tid) in zip(open_at(table, asked).tolist(), moments, strict=True):
        around = [(ts, -(ts + dur)) for ts, dur, own in nested if own == tid and ts <= at < ts + dur]
        assert (row == -1) == (not around)
        if around:
            found = table.row(row, named=True)
            assert (found["ts"], -found["end"]) == max(around)


def _nest(one, other):
    (a, b, s), (c, d, t) = one, other
    return s != t or a + b <= c or c + d <= a or (a <= c and c + d <= a + b) or (c <= a and a + b <= c + d)


@settings(max_examples=4, deadline=None)
@given(TRACES)
def test_the_same_trace_has_the_same_answers_in_the_same_order(trace):
    for name in ANALYSES:
        assert table(name, trace).equals(table(name, replace(trace))), name
