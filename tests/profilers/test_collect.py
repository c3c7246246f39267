"""What a profiler left: which files are read, as ranks, and the passes of one program as one trace."""

import polars as pl
import pytest
from rocpd_writer import Writer

from rung.analysis.counters import counters as counters_by_kernel
from rung.analysis.counters import dispatch_counters
from rung.errors import InputError
from rung.profilers.collect import UNMATCHED, joined, read_all, read_kept, within_steps
from rung.profilers.plan import Run, is_kept
from rung.trace import Trace
from rung.trace.output import counters_by_row
from rung.trace.table import COUNTERS, SCHEMA


def database(path, pid, kernels, device=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(path, pid=pid) as writer:
        for place, name in enumerate(kernels):
            writer.dispatch(name, 1000 * place, 1000 * place + 500, stack=place + 1, device=device)
        if not kernels:
            writer.region("HIP_RUNTIME_API_EXT", "hipGetDeviceCount", 1, 2, stack=1)


def test_processes_are_ranks_and_a_launcher_is_none(tmp_path):
    output = tmp_path / "recording"
    database(output / "node7" / "10_results.db", 10, [])
    database(output / "node7" / "11_results.db", 11, ["a"], device=0)
    database(output / "node7" / "12_results.db", 12, ["a", "b"], device=1)
    trace = read_all(tmp_path, "rocprofv3", [Run("trace", (), output)], [tmp_path / "log"])
    assert trace.events.filter(kind="kernel").group_by("rank").len().sort("rank").rows() == [(0, 1), (1, 2)]


def test_what_a_tool_writes_twice_is_read_once(tmp_path):
    output = tmp_path / "recording"
    database(output / "rocpd-5.db", 5, ["a"])
    (output / "perfetto-trace-5.proto").write_bytes(b"\n\x00" * 10)
    assert read_all(tmp_path, "rocprof-sys-run", [Run("trace", (), output)], [tmp_path]).format == "rocpd"


def test_of_a_workload_only_the_marked_steps_are_read(tmp_path):
    output = tmp_path / "recording"
    output.mkdir()
    with Writer(output / "5_results.db", pid=5) as writer:
        for place, name in enumerate(("load", "a", "b", "exit")):
            writer.dispatch(name, 1000 * place, 1000 * place + 500, stack=place + 1, counters=[("SQ_WAVES", 7.0)])
        for step in (0, 1):
            mark = "MARKER_CORE_RANGE_API", "roctxThreadRangeA", 1000 * (step + 1) - 100, 1000 * (step + 1) + 600
            writer.region(*mark, stack=90 + step, message=f"ProfilerStep#{step}")
    runs, logs = [Run("trace", (), output)], [tmp_path]
    trace = read_all(tmp_path, "rocprofv3", runs, logs, steps_only=True)
    assert trace.events.filter(kind="kernel")["name"].to_list() == ["a", "b"]
    assert trace.counters["kernel"].to_list() == ["a", "b"]
    assert trace.unread["event outside of the recorded steps"] == 2
    assert read_all(tmp_path, "rocprofv3", runs, logs).events.filter(kind="kernel").height == 4


def trace_of(kernels, counters=(), first=1):
    rows = [
        {"ts": 10 * i, "dur": 5, "kind": "kernel", "name": k, "device": 0, "correlation": first + i}
        for i, k in enumerate(kernels)
    ]
    values = [(first + i, 0, k, c, float(100 * i), None) for c in counters for i, k in enumerate(kernels)]
    return Trace(
        events=pl.DataFrame(rows, schema_overrides={k: v for k, v in SCHEMA.items() if k in rows[0]}).match_to_schema(
            pl.Schema(SCHEMA), missing_columns={k: pl.lit(None, v) for k, v in SCHEMA.items() if k not in rows[0]}
        ),
        counters=pl.DataFrame(values, schema=COUNTERS, orient="row"),
    )


def test_passes_are_joined_by_the_number_of_the_dispatch_of_each_kernel():
    trace = joined([trace_of("abab", first=50), trace_of("aabb", ["X"]), trace_of("abab", ["Y"], first=7)])
    assert trace.events.height == 4
    # In the second run the order differs, and the second `a` is still the second.
    found = {c: sorted(trace.counters.filter(counter=c).select("correlation", "kernel", "value").rows()) for c in "XY"}
    assert found["X"] == [(50, "a", 0.0), (51, "b", 200.0), (52, "a", 100.0), (53, "b", 300.0)]
    assert found["Y"] == [(50, "a", 0.0), (51, "b", 100.0), (52, "a", 200.0), (53, "b", 300.0)]


def test_counters_of_ranks_that_number_alike_stay_apart(tmp_path):
    runs = [Run(what, (), tmp_path / "recording" / what) for what in ("pass_1", "pass_2")]
    for place, run in enumerate(runs):
        for rank in (0, 1):
            run.output.mkdir(parents=True, exist_ok=True)
            with Writer(run.output / f"{10 * place + rank}_results.db", pid=10 * place + rank) as writer:
                counters = [("SQ_WAVES", 100.0 * rank + 7)] if place else ()
                writer.dispatch("k", 1000, 2000 + 500 * rank, stack=1, counters=counters)
    trace = read_all(tmp_path, "rocprofv3", runs, [tmp_path] * 2)
    found = counters_by_kernel(trace).select("rank", "time_ns", "waves").rows()
    assert sorted(found) == [(0, 1000, 7.0), (1, 1500, 107.0)]
    assert dispatch_counters(trace).select("rank", "waves").rows() == [(0, 7.0), (1, 107.0)]
    _, orphans = counters_by_row(trace)
    assert orphans.height == 0


def test_outside_of_the_steps_a_rank_loses_the_counters_of_its_own_dispatches_alone():
    def rank(number, begin):
        """A dispatch of the number 1 in all ranks."""
        trace = trace_of("a", ["X"], first=1)
        events = trace.events.with_columns(ts=pl.lit(begin, pl.Int64), rank=pl.lit(number, pl.Int32))
        return events, trace.counters.with_columns(rank=pl.lit(number, pl.Int32))

    (events, counted), (others, more) = rank(0, 10), rank(1, 500)
    step = events.with_columns(
        kind=pl.lit("annotation", SCHEMA["kind"]),
        name=pl.lit("ProfilerStep#0", SCHEMA["name"]),
        ts=pl.lit(0, pl.Int64),
        dur=pl.lit(100, pl.Int64),
    )
    trace = Trace(events=pl.concat([step, events, others]), counters=pl.concat([counted, more]))
    kept = within_steps(trace)
    assert kept.events.filter(kind="kernel")["rank"].to_list() == [0]
    assert kept.counters["rank"].to_list() == [0]


def test_dispatches_that_the_first_run_did_not_have_are_counted():
    trace = joined([trace_of("ab"), trace_of("abac", ["X", "Z"])])
    assert trace.unread[UNMATCHED] == 4  # the second `a` and `c`, two counters each
    assert trace.counters["correlation"].null_count() == 4
    assert trace.counters.height == 8


def test_a_counter_that_two_passes_have_is_taken_from_the_first():
    trace = joined([trace_of("a"), trace_of("a", ["X"]), trace_of("a", ["X", "Y"])])
    assert sorted(trace.counters["counter"]) == ["X", "Y"]


@pytest.mark.parametrize("text", ["{", "{}", '{"profiler": "rocprofv3", "runs": [{"output": "x"}]}', "[]"])
def test_a_damaged_plan_is_said(text, tmp_path):
    (tmp_path / "recording").mkdir()
    (tmp_path / "plan.json").write_text(text)
    assert is_kept(tmp_path)
    with pytest.raises(InputError, match=r"plan\.json is damaged"):
        read_kept(tmp_path)
