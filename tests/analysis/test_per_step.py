"""How many steps a recording holds, and a recording of some of them."""

from pathlib import Path

import polars as pl
import pytest
from random_traces import call, on_gpu, op, trace_of

from rung.analysis.overview import completeness
from rung.analysis.per_step import divisor, of_steps, per_step
from rung.analysis.timeline import timeline
from rung.errors import UsageError
from rung.trace import read

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


def marked(number, ts, dur):
    return {"ts": ts, "dur": dur, "kind": "annotation", "name": f"ProfilerStep#{number}"}


STEPS = [
    marked(4, 100, 100), marked(5, 200, 100), op(110, 20, "aten::mm"), call(111, 2, 1), op(210, 20, "aten::mm"), call(211, 2, 2),
    on_gpu(150, 50, correlation=1), on_gpu(250, 50, correlation=2),
]  # fmt: skip


def test_recorded_steps_divide_what_they_make_up():
    assert divisor(trace_of(*STEPS)) == (2, "")
    assert divisor(trace_of(on_gpu(0, 5))) == (1, "")


def test_work_from_before_the_steps_is_no_part_of_one():
    steps, note = divisor(trace_of(*STEPS, on_gpu(0, 40, correlation=77)))
    assert steps == 1
    assert "50% of the GPU's time comes before the first work of the recorded steps" in note


def test_a_step_has_what_was_launched_in_it():
    trace = trace_of(*STEPS, on_gpu(0, 40, correlation=77), op(190, 20, "aten::through"))
    only = of_steps(trace, {5})
    assert only.events["name"].to_list() == ["ProfilerStep#5", "aten::mm", "hipLaunchKernel", "k", "aten::through"]
    assert timeline(only)["total_ns"].to_list() == [50]
    assert timeline(of_steps(trace, None))["unlinked"].to_list() == [0, 0, 0]


@pytest.mark.parametrize(("steps", "said"), [({9}, "no step 9: its steps are 4, 5"), ({4, 9}, "no step 9")])
def test_a_step_that_is_not_there_is_named(steps, said):
    with pytest.raises(UsageError, match=said):
        of_steps(trace_of(*STEPS), steps)
    with pytest.raises(UsageError, match="has no step: "):
        of_steps(trace_of(op(0, 1, "x")), None)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_a_real_warm_up_step_is_told_apart():
    trace = read(SHARED / "mi300_resnet_fsdp_ckpt.json.gz")
    assert divisor(trace)[0] == 1
    only = of_steps(trace, None)
    assert divisor(only) == (3, "")
    whole, *steps = timeline(only).to_dicts()
    assert (whole["unlinked"], whole["kernels"], [row["step"] for row in steps]) == (0, 3 * 746, [15, 16, 17])


def two_processes(second):
    """One file with two processes, a GPU each, whose steps are out of phase by half; `second`: what the steps of the second one are numbered from."""
    rows = []
    for pid, device, first, shift in (("1", 0, 0, 0), ("2", 1, second, 50)):
        for n in range(3):
            begin, number = 100 * n + shift, 10 * device + n
            rows += [marked(first + n, begin, 100) | {"pid": pid}, op(begin + 5, 20, f"op of {pid}", pid=pid)]
            rows += [
                call(begin + 10, 2, 2 * number, pid=pid),
                on_gpu(begin + 20, 30, correlation=2 * number, device=device),
            ]
            rows += [
                call(begin + 70, 2, 2 * number + 1, pid=pid),
                on_gpu(begin + 80, 10, correlation=2 * number + 1, device=device),
            ]
    return trace_of(*rows)


@pytest.mark.parametrize("second", [0, 50])
def test_processes_in_one_file_have_steps_of_their_own(second):
    trace = two_processes(second)
    assert divisor(trace) == (3, "")
    table = timeline(trace).drop_nulls("step")
    assert table.select("device", "step").rows() == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, second),
        (1, second + 1),
        (1, second + 2),
    ]
    assert table["total_ns"].to_list() == [100, 100, 70] * 2
    assert table["kernels"].to_list() == [2] * 6
    assert completeness(trace).is_empty()


def test_a_step_of_one_process_has_nothing_of_another():
    only = of_steps(two_processes(50), {51})
    assert set(only.events["pid"].filter(only.events["device"].is_null())) == {"2"}
    assert only.events.drop_nulls("device").select("device", "ts").rows() == [(1, 170), (1, 230)]


def ranks_with(*recorded, named="rank"):
    """Processes that recorded these steps, a kernel of 50 of 100 ns each."""
    rows = []
    for process, numbers in enumerate(recorded):
        who = {"rank": process} if named == "rank" else {"pid": str(process)}
        for number in numbers:
            at, correlation = 100 * number, 100 * process + number
            rows += [marked(number, at, 100) | who, call(at + 10, 2, correlation, **who)]
            rows += [on_gpu(at + 20, 50, correlation=correlation, device=process, **who)]
    return trace_of(*rows)


@pytest.mark.parametrize("named", ["rank", "process"])
def test_processes_that_recorded_fewer_steps_are_compared_over_those_that_all_have(named):
    trace = ranks_with(range(4), range(2), named=named)
    only, steps, note = per_step(trace)
    assert (steps, note) == (2, f"{named} 1 recorded 2 of 4 steps: figures are of the 2 steps that all recorded.")
    whole = timeline(only).filter(pl.col("step").is_null())
    assert whole["total_ns"].to_list() == [150, 150]
    assert divisor(trace) == (1, f"{named} 1 recorded 2 of 4 steps: figures are of the whole recording.")


def test_processes_without_a_step_in_common_have_no_figures_of_a_step():
    trace = ranks_with(range(3), [7])
    only, steps, note = per_step(trace)
    assert only is trace
    assert (steps, note) == (
        1,
        "rank 0 recorded 3 of 4 steps, rank 1 recorded 1 of 4 steps: figures are of the whole recording.",
    )


def test_ranks_that_recorded_as_many_steps_are_analyzed_as_they_are():
    trace = ranks_with([3, 4], [4, 5])
    assert per_step(trace) == (trace, 2, "")
