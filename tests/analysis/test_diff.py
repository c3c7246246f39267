"""Differences of two traces: they add up to the timelines, whatever the traces are, and align what vendors call differently."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.analysis.account import account
from rung.analysis.breakdown import breakdown
from rung.analysis.diff import BY, diff
from rung.analysis.timeline import timeline
from rung.errors import UsageError
from rung.trace import Trace, read
from rung.trace.table import SCHEMA

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")


def trace_of(*events):
    blank = dict.fromkeys(SCHEMA) | {"pid": "1", "tid": "1", "name": "k"}
    return Trace(pl.DataFrame([blank | event for event in events], schema=SCHEMA))


def launched(op, kernel, ts, dur, number, **more):
    """An operator of the host, its launch and the kernel."""
    return [
        {"ts": ts - 20, "dur": 10, "kind": "cpu_op", "name": op},
        {"ts": ts - 18, "dur": 5, "kind": "runtime", "name": "hipLaunchKernel", "correlation": number},
        {
            "ts": ts,
            "dur": dur,
            "kind": "kernel",
            "name": kernel,
            "device": 0,
            "stream": 0,
            "correlation": number,
            **more,
        },
    ]


KERNELS = ["Cijk_Alik_Bljk_BBS_BH_MT64", "ncclDevKernel_Generic(x)", "elementwise_kernel", "MEMORY_COPY_DEVICE_TO_HOST"]
gpu_event = st.fixed_dictionaries(
    {
        "ts": st.integers(0, 300),
        "dur": st.integers(0, 80),
        "name": st.sampled_from(KERNELS),
        "kind": st.sampled_from(["kernel", "kernel", "kernel", "memcpy", "memset"]),
        "device": st.integers(0, 1),
        "stream": st.integers(0, 2),
        "rank": st.sampled_from([None, 0, 1]),
        "correlation": st.integers(0, 5),
    }
)
host_event = st.fixed_dictionaries(
    {
        "ts": st.integers(0, 300),
        "dur": st.integers(0, 60),
        "name": st.sampled_from(["aten::mm", "aten::add", "hipLaunchKernel", "hipGraphLaunch", "ProfilerStep#3"]),
        "kind": st.sampled_from(["cpu_op", "runtime", "annotation"]),
        "rank": st.sampled_from([None, 0, 1]),
        "correlation": st.integers(0, 5),
    }
)
traces = st.lists(gpu_event, min_size=1, max_size=25).flatmap(
    lambda gpu: st.lists(host_event, max_size=15).map(lambda host: trace_of(*gpu, *host))
)


@given(traces)
def test_every_busy_nanosecond_is_given_to_one_event(trace):
    own, rows = account(trace), timeline(trace).filter(pl.col("step").is_null())
    assert (own["own_ns"] >= 0).all()
    assert (own["own_ns"] <= own["dur"]).all()
    sums = dict(own.group_by("role").agg(pl.col("own_ns").sum()).iter_rows())
    assert own["own_ns"].sum() == rows["busy_ns"].sum()
    assert sums.get("computation", 0) == rows["computation_ns"].sum()
    assert sums.get("communication", 0) == rows["exposed_communication_ns"].sum()
    assert sums.get("memcpy", 0) == rows["exposed_memcpy_ns"].sum()


@given(traces, traces, st.integers(1, 4))
def test_tables_and_totals_reconcile_with_both_timelines(base, new, steps):
    try:
        found = diff(base, new, base_steps=1, new_steps=steps)
    except UsageError:  # no event takes any time
        assert not (timeline(base)["total_ns"].sum() and timeline(new)["total_ns"].sum())
        return
    for side, trace in ((found.base, base), (found.new, new)):
        rows = timeline(trace).filter(pl.col("step").is_null())
        assert side.total_ns == rows["total_ns"].sum() == sum(side.parts.values())
        assert side.busy_ns + side.parts["idle_ns"] == side.total_ns
    for name, table in found.tables.items():
        assert table["base_total_ns"].sum() == found.base.busy_ns, name
        assert table["new_total_ns"].sum() == found.new.busy_ns, name
        assert table["what"].n_unique() == table.height


@given(traces)
@settings(max_examples=10, deadline=None)
def test_a_trace_does_not_differ_from_itself(trace):
    try:
        found = diff(trace, trace)
    except UsageError:
        return
    assert found.ratio == 1
    for table in found.tables.values():
        assert set(table["change"]) <= {"same"}


def test_operators_align_where_kernels_have_other_names():
    base = trace_of(
        *launched("aten::linear", "nvjet_sm90_tst_128x256", 100, 50, 1),
        *launched("aten::gelu", "vectorized_elementwise_kernel", 200, 20, 2),
        *launched("aten::sort", "radix_sort", 300, 10, 3),
    )
    new = trace_of(
        *launched("aten::linear", "Cijk_Alik_Bljk_BBS_BH_MT128x128", 100, 80, 1),
        *launched("aten::gelu", "vectorized_elementwise_kernel", 200, 5, 2),
        *launched("aten::topk", "gatherTopK", 300, 10, 3),
    )
    rows = {row["what"]: row for row in diff(base, new).tables["op"].to_dicts()}
    assert {name: row["change"] for name, row in rows.items()} == {
        "aten::linear": "slower", "aten::gelu": "faster", "aten::sort": "vanished", "aten::topk": "appeared"
    }  # fmt: skip
    assert rows["aten::linear"]["delta_ns"] == 30
    assert rows["aten::linear"]["base_kernel"].startswith("nvjet")
    assert rows["aten::linear"]["new_kernel"].startswith("Cijk")


def test_times_are_of_one_step():
    once = launched("aten::mm", "gemm", 100, 50, 1)
    twice = [*once, *launched("aten::mm", "gemm", 200, 50, 2)]
    (row,) = diff(trace_of(*once), trace_of(*twice), new_steps=2).tables["op"].to_dicts()
    assert (row["base_ns"], row["new_ns"], row["new_count"], row["change"]) == (50, 50, 1, "same")
    assert (row["base_total_ns"], row["new_total_ns"]) == (50, 100)


@pytest.mark.parametrize(("steps", "slower", "told"), [(1, 1, True), (4, 1, True), (5, 1, False), (1, 20, False)])
def test_a_small_change_between_few_steps_is_not_shown_as_certain(steps, slower, told):
    def steps_of(ns):
        return trace_of(*(event for n in range(steps) for event in launched("aten::mm", "gemm", 100 + 200 * n, ns, n)))

    found = diff(steps_of(100), steps_of(100 + slower), base_steps=steps, new_steps=steps)
    assert any("shows no small change for certain" in note for note in found.notes) is told


def test_a_trace_without_gpu_events_is_not_compared_with_one_that_has_some():
    with pytest.raises(UsageError, match="one trace has no GPU events, but the other trace has: record both"):
        diff(trace_of({"ts": 0, "dur": 5, "kind": "cpu_op"}), trace_of(*launched("aten::mm", "gemm", 100, 50, 1)))


@given(st.lists(host_event, max_size=15), st.lists(host_event, max_size=15), st.integers(1, 4))
def test_without_gpu_events_the_tables_add_up_to_the_time_in_operators(base, new, steps):
    try:
        found = diff(trace_of(*base), trace_of(*new), base_steps=1, new_steps=steps)
    except UsageError:  # no operator takes any time, or those that do lie outside of the marked steps
        marked = any(event["name"].startswith("ProfilerStep") for event in (*base, *new))
        assert marked or not all(any(e["kind"] == "cpu_op" and e["dur"] for e in side) for side in (base, new))
        return
    assert (found.clock, set(found.tables)) == ("cpu", {"op", "shape", "category"})
    for side in (found.base, found.new):
        assert side.total_ns == sum(side.parts.values())
        assert side.parts["computation_ns"] == side.busy_ns
    for table in found.tables.values():
        assert table["base_total_ns"].sum() == found.base.busy_ns
        assert table["new_total_ns"].sum() == found.new.busy_ns


def test_on_the_cpu_a_step_divides_as_its_breakdown_does():
    ops = [("aten::linear", 0, 60), ("aten::addmm", 10, 40), ("aten::gelu", 70, 20), ("MmBackward0", 90, 10)]
    step = {"ts": 0, "dur": 100, "kind": "annotation", "name": "ProfilerStep#3"}
    base = trace_of(step, *({"ts": ts, "dur": dur, "kind": "cpu_op", "name": name} for name, ts, dur in ops))
    found, parts = diff(base, base), breakdown(base, steps=1)
    rows = {row["what"]: (row["base_ns"], row["base_count"]) for row in found.tables["op"].to_dicts()}
    assert rows == {"aten::linear": (20, 1), "aten::addmm": (40, 1), "aten::gelu": (20, 1)}
    assert found.base.step_ns == parts.step_ns == 100
    assert found.base.parts["idle_ns"] == parts.parts["launch_gap"] == 20
    assert found.notes[0] == "Neither trace has GPU events; times are CPU time."
    assert "`rung compare` says which side is faster" in found.notes[1]


def test_on_the_cpu_ranks_are_read_one_by_one():
    """Threads of two ranks have the same number here."""
    ranks = [{"ts": 0, "dur": 50, "kind": "cpu_op", "name": "aten::mm", "rank": rank} for rank in (0, 1)]
    found = diff(trace_of(*ranks), trace_of(*ranks[:1]), by=("op", "module"))
    (row,) = found.tables["op"].to_dicts()
    assert (row["base_ns"], row["new_ns"], row["base_total_ns"]) == (50, 50, 100)
    assert any("no table by module" in note for note in found.notes)
    assert any("per step and per rank" in note for note in found.notes)


@real
def test_mi300_against_h100():
    base, new = (read(SHARED / f"{name}_timesformer.json.gz") for name in ("h100", "mi300"))
    found = diff(base, new)
    assert set(found.tables) == set(BY)
    for side, trace in ((found.base, base), (found.new, new)):
        assert side.total_ns == timeline(trace)["total_ns"].sum()
    ops = found.tables["op"]
    # By operator nearly all of the time has a counterpart; by kernel name nearly none.
    matched = {
        name: found.tables[name].filter(~pl.col("change").is_in(["appeared", "vanished"]))["new_total_ns"].sum() / found.new.busy_ns
        for name in ("op", "module", "kernel")
    }  # fmt: skip
    assert matched["op"] > 0.99
    assert matched["module"] > 0.99
    assert matched["kernel"] < 0.5
    (softmax,) = ops.filter(pl.col("what") == "aten::softmax").to_dicts()
    assert (softmax["base_total_ns"], softmax["new_total_ns"], softmax["change"]) == (68_781_297, 41_856_651, "faster")


@real
def test_what_was_launched_before_the_recorded_steps_is_no_part_of_one():
    """mi300_resnet_fsdp_ckpt: a third of its GPU time belongs to the step before the three recorded ones."""
    trace = read(SHARED / "mi300_resnet_fsdp_ckpt.json.gz")
    found = diff(trace, trace, new_steps=3, by=("op",))
    assert found.base.steps == 3
    assert found.base.total_ns < 0.7 * found.new.total_ns
    assert any("base" in note and "left out" in note for note in found.notes)
    assert found.tables["op"]["base_total_ns"].sum() == found.base.busy_ns


def test_ranks_that_recorded_fewer_steps_are_compared_over_those_that_all_have():
    def rank(number, steps):
        rows = []
        for step in range(steps):
            mark = {"kind": "annotation", "name": f"ProfilerStep#{step}", "ts": 1000 * step, "dur": 1000}
            rows += [mark, *launched("aten::mm", "Cijk_gemm", 1000 * step + 50, 900, 100 * number + step)]
        return [row | {"rank": number} for row in rows]

    whole, cut = trace_of(*rank(0, 4), *rank(1, 4)), trace_of(*rank(0, 4), *rank(1, 2))
    found = diff(whole, cut, by=("op",))
    assert (found.new.steps, found.new.step_ns) == (2, pytest.approx(found.base.step_ns, rel=0.03))
    assert "new: rank 1 recorded 2 of 4 steps: figures are of the 2 steps that all recorded." in found.notes
    on_host = [trace.events.filter(pl.col("device").is_null()) for trace in (whole, cut)]
    (row,) = diff(*(Trace(events) for events in on_host), by=("op",)).tables["op"].to_dicts()
    assert row["base_ns"] == pytest.approx(row["new_ns"])
