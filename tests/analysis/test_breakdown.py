"""Where a step's time goes: on hand-made traces with known answers, on real ones, and on the CPU."""

import time
from pathlib import Path

import polars as pl
import pytest

from rung.analysis.breakdown import PARTS, breakdown
from rung.errors import UsageError
from rung.trace import Trace, read
from rung.trace.table import SCHEMA

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
SCORES = "[[2,4,16,32]]"


def trace_of(*events, **unread):
    blank = dict.fromkeys(SCHEMA) | {"pid": "1", "tid": "1", "name": "k"}
    return Trace(pl.DataFrame([blank | event for event in events], schema=SCHEMA), unread=unread)


def kernel(ts, dur, name="void at::native::vectorized_elementwise_kernel", **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": "kernel", "device": 0, "stream": 0, **more}


def launch(ts, correlation, name="hipLaunchKernel", **more):
    return {"ts": ts, "dur": 5, "name": name, "kind": "runtime", "correlation": correlation, **more}


def op(ts, dur, name, dims=None, **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": "cpu_op", "dims": dims, **more}


def note(ts, dur, name):
    return {"ts": ts, "dur": dur, "name": name, "kind": "annotation"}


def adds_up(result):
    return set(result.parts) == set(PARTS) and sum(result.parts.values()) == pytest.approx(result.step_ns)


def test_overlapping_streams_do_not_count_twice():
    result = breakdown(trace_of(kernel(0, 100, "Cijk_A"), kernel(0, 100, stream=1)), steps=1)
    assert result.parts["gemm"] == result.parts["pointwise"] == 50
    assert result.notes[0] == "Streams overlap: 200 ns of GPU work in 100 ns; times here are scaled down to the second."
    assert adds_up(result)


def test_a_gap_belongs_to_the_host_only_if_the_launch_came_after_the_gpu_ran_dry():
    late = trace_of(kernel(0, 100), launch(150, 1), kernel(200, 50, correlation=1))
    early = trace_of(kernel(0, 100), launch(90, 1), kernel(200, 50, correlation=1))
    assert breakdown(late, steps=1).parts["launch_gap"] == 100
    assert breakdown(early, steps=1).parts["idle"] == 100
    assert breakdown(late, steps=1).bottleneck == "pointwise"
    assert breakdown(late, steps=1).share == pytest.approx(150 / 250)


def test_a_measured_step_replaces_the_gaps_and_keeps_their_ratio():
    trace = trace_of(
        kernel(0, 100),
        launch(150, 1),
        kernel(200, 100, correlation=1),
        launch(250, 2),
        kernel(600, 100, correlation=2),
    )
    result = breakdown(trace, steps=1, step_ns=340)
    assert result.parts["pointwise"] == 300
    assert result.parts["launch_gap"] == pytest.approx(10)
    assert result.parts["idle"] == pytest.approx(30)
    assert adds_up(result)
    assert result.step_ns == 340


def test_without_an_observed_gap_the_rest_of_a_measured_step_is_the_hosts():
    assert breakdown(trace_of(kernel(0, 100)), steps=1, step_ns=130).parts["launch_gap"] == 30


def test_a_measured_step_shorter_than_the_work_is_replaced_and_said_so():
    result = breakdown(trace_of(kernel(0, 100)), steps=1, step_ns=60)
    assert result.step_ns == 100
    assert adds_up(result)
    assert any("under the profiler was slower" in sentence for sentence in result.notes)


def hand_written_attention(link):
    """A product, a scaling, a softmax and a product of one head block, then a GEMM that is none of it."""
    calls = [
        ("aten::bmm", "[[8,16,64],[8,64,32]]", "Cijk_scores"),
        ("aten::div", "[[2,4,16,32],[]]", "div_elementwise"),
        ("aten::_softmax", SCORES, "softmax_warp_forward"),
        ("aten::bmm", "[[8,16,32],[8,32,64]]", "Cijk_values"),
        ("aten::bmm", "[[8,32,16],[8,16,64]]", "Cijk_backward_of_v"),
        ("aten::mm", "[[32,256],[256,256]]", "Cijk_projection"),
    ]
    events = []
    for i, (name, dims, gpu_name) in enumerate(calls):
        events.append(op(100 * i, 50, name, dims, external_id=i + 1))
        events.append(kernel(1000 + 10 * i, 10, gpu_name, **link(i, events)))
    return trace_of(*events)


def by_launch(i, events):
    events.append(launch(100 * i + 10, i + 1))
    return {"correlation": i + 1}


def by_external_id(i, events):
    return {"external_id": i + 1}


@pytest.mark.parametrize("link", [by_launch, by_external_id])
def test_hand_written_attention_is_attention_by_its_shapes(link):
    result = breakdown(hand_written_attention(link), steps=1)
    assert result.parts["attention"] == 50
    assert result.parts["gemm"] == 10
    assert result.gemms == 4
    assert result.softmax_dims == ((2, 4, 16, 32),)


def test_kernels_launched_by_an_optimizer_step_are_the_optimizers():
    trace = trace_of(
        note(0, 100, "Optimizer.step#SGD.step"),
        op(10, 50, "aten::add_"),
        launch(20, 1),
        kernel(500, 10, correlation=1),
    )
    assert breakdown(trace, steps=1).parts["optimizer"] == 10


def test_an_optimizer_step_that_runs_a_closure_says_nothing_of_what_is_below_it():
    """Lightning runs the forward and backward pass inside of `step`; the backward pass is another thread's on a GPU."""
    trace = trace_of(
        note(0, 100, "Optimizer.step#AdamW.step"),
        op(10, 20, "aten::mm"),
        launch(20, 1),
        op(40, 20, "autograd::engine::evaluate_function: MmBackward0", tid="2"),
        op(70, 20, "aten::_fused_adamw_"),
        launch(75, 2),
        note(200, 100, "Optimizer.step#AdamW.step"),
        op(210, 20, "aten::add_"),
        launch(215, 3),
        kernel(500, 10, "Cijk_A", correlation=1),
        kernel(600, 5, correlation=2),
        kernel(700, 3, correlation=3),
    )
    parts = breakdown(trace, steps=1).parts
    assert parts["gemm"] == 10
    assert parts["optimizer"] == 5 + 3


def test_on_the_cpu_a_closure_is_not_the_optimizers_time():
    trace = trace_of(
        note(0, 1000, "ProfilerStep#1"),
        note(100, 800, "Optimizer.step#AdamW.step"),
        op(200, 100, "aten::mm"),
        op(400, 100, "autograd::engine::evaluate_function: MmBackward0"),
        op(420, 70, "aten::mm"),
        op(700, 50, "aten::_fused_adamw_"),
    )
    parts = breakdown(trace, steps=1).parts
    assert parts["gemm"] == pytest.approx(100 + 70)
    assert parts["optimizer"] == pytest.approx(50)


def test_a_gemm_kernel_launched_by_a_convolution_is_a_convolution():
    trace = trace_of(op(0, 50, "aten::miopen_convolution"), launch(10, 1), kernel(99, 7, "Cijk_A", correlation=1))
    assert breakdown(trace, steps=1).parts["convolution"] == 7


def test_graph_replay_and_unlinked_work_and_negative_durations_are_noted():
    replayed = [kernel(100 + 10 * i, 10, "Cijk_A", correlation=5) for i in range(3)]
    trace = trace_of(launch(0, 5, "hipGraphLaunch"), *replayed, kernel(200, 10), **{"negative duration": 2})
    result = breakdown(trace, steps=1)
    text = " ".join(result.notes)
    assert "3 GPU events were replayed by one launch of a graph" in text
    assert "25% of GPU time (1 x) was launched outside" in text
    assert "2 events with a negative duration" in text
    assert (result.kernels, result.launches, result.gemms) == (4, 1, 3)


def test_figures_are_per_step():
    calls = [event for i in range(4) for event in (launch(100 * i, i), kernel(100 * i + 50, 20, correlation=i))]
    result = breakdown(trace_of(*calls), steps=2)
    assert (result.kernels, result.launches) == (2, 2)
    assert result.step_ns == pytest.approx(320 / 2)
    assert result.parts["pointwise"] == pytest.approx(40)
    assert result.top[0][1:] == ("elementwise", pytest.approx(40), 2)


def test_the_busiest_of_several_devices_is_shown():
    result = breakdown(trace_of(kernel(0, 10), {**kernel(0, 30, "Cijk_A"), "device": 3}), steps=1)
    assert result.parts["gemm"] == 30
    assert any("device 3" in sentence for sentence in result.notes)


def test_launches_are_those_of_the_device_that_is_shown():
    result = breakdown(
        trace_of(
            launch(0, 1), launch(10, 2), launch(20, 3),
            kernel(20, 90, correlation=1), kernel(30, 10, correlation=2, device=1), kernel(50, 10, correlation=3, device=1),
        ),
        steps=1,
    )  # fmt: skip
    assert (result.kernels, result.launches) == (1, 1)


@pytest.mark.parametrize(("timed", "said"), [(900, False), (1100, False), (3000, True)])
def test_on_the_cpu_a_step_that_was_slower_without_the_profiler_has_no_more_of_the_host(timed, said):
    trace = trace_of(note(0, 1000, "ProfilerStep#1"), op(100, 600, "aten::mm"))
    result = breakdown(trace, steps=1, step_ns=timed)
    assert result.step_ns == pytest.approx(timed)
    assert adds_up(result)
    assert result.parts["launch_gap"] / timed == pytest.approx(0.4 if timed > 1000 else 1 / 3)
    assert result.top[0][2] == pytest.approx(0.6 * timed if timed > 1000 else 600)
    assert any("slower without the profiler: " in sentence for sentence in result.notes) == said


def test_a_profiler_that_slows_work_down_by_little_is_not_worth_a_sentence():
    result = breakdown(trace_of(kernel(0, 100)), steps=1, step_ns=99)
    assert result.step_ns == 100
    assert not any("profiler" in sentence for sentence in result.notes)


def test_on_the_cpu_an_operator_has_its_own_time_and_the_rest_is_the_hosts():
    trace = trace_of(
        note(0, 1000, "ProfilerStep#1"),
        op(100, 100, "aten::linear", "[[4,8],[8,8]]"),
        op(120, 60, "aten::addmm"),
        op(300, 50, "aten::_softmax", SCORES),
        op(400, 40, "aten::_log_softmax"),
        op(500, 100, "autograd::engine::evaluate_function: MmBackward0", tid="2"),
        op(520, 70, "aten::mm", tid="2"),
        note(700, 100, "Optimizer.step#AdamW.step"),
        op(710, 30, "aten::add_"),
        op(850, 60, "## Call CompiledFxGraph f123 ##"),
        op(2000, 500, "aten::mm"),
    )
    result = breakdown(trace, steps=1)
    assert result.clock == "cpu"
    assert result.step_ns == 1000
    assert result.parts["gemm"] == pytest.approx(100 + 70)
    assert result.parts["attention"] == pytest.approx(50)
    assert result.parts["pointwise"] == pytest.approx(40 + 60)
    assert result.parts["optimizer"] == pytest.approx(30)
    assert result.parts["launch_gap"] == pytest.approx(1000 - 350)
    assert result.gemms == 2
    assert adds_up(result)
    assert any("compiled graphs" in sentence for sentence in result.notes)


def test_an_empty_trace_and_a_wrong_number_of_steps():
    result = breakdown(trace_of(), steps=1)
    assert (result.step_ns, result.share) == (0, 0)
    with pytest.raises(UsageError, match="at least 1"):
        breakdown(trace_of(), steps=0)


@real
def test_a_real_trace_is_broken_down_quickly_and_its_unfused_attention_is_seen():
    begun = time.process_time()
    result = breakdown(read(SHARED / "mi300_timesformer.json.gz"), steps=1)
    assert time.process_time() - begun < 3
    assert result.bottleneck == "attention"
    assert result.share > 0.75
    assert (8, 12, 3137, 3137) in result.softmax_dims
    assert adds_up(result)
    assert breakdown(read(SHARED / "mi300_vit.json.gz"), steps=1).bottleneck == "launch_gap"


@real
def test_hardly_any_gpu_time_of_the_real_traces_is_other():
    for path in sorted(SHARED.glob("*.json.gz")):
        result = breakdown(read(path), steps=1)
        assert result.clock == "gpu"
        assert adds_up(result), path
        busy = result.step_ns - result.parts["launch_gap"] - result.parts["idle"]
        assert result.parts["other"] <= 0.03 * busy, path


def test_a_real_cpu_recording_of_attention_and_an_optimizer(tmp_path):
    torch = pytest.importorskip("torch", reason="torch records this trace")
    from torch.profiler import profile

    weight = torch.randn(64, 64, requires_grad=True)
    batch = torch.randn(2, 4, 128, 64)
    optimizer = torch.optim.AdamW([weight])

    def step():
        optimizer.zero_grad()
        query = batch @ weight
        scores = torch.softmax(query @ batch.transpose(-2, -1) / 8, dim=-1)
        (scores @ batch).sum().backward()
        optimizer.step()

    step()
    with profile(record_shapes=True) as recording:
        for _ in range(3):
            step()
    path = tmp_path / "cpu.json"
    recording.export_chrome_trace(str(path))
    result = breakdown(read(path), steps=3)
    assert result.clock == "cpu"
    assert result.softmax_dims == ((2, 4, 128, 128),)
    assert adds_up(result)
    assert result.parts["attention"] > 0
    assert result.parts["optimizer"] > 0
    assert result.parts["gemm"] > 0
    assert result.gemms >= 6  # one projection and two products, each with its gradients
