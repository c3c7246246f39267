"""By how many steps to divide what a recording holds; and a recording of some of its steps only."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rung.analysis.gpu_events import gpu_events
from rung.analysis.steps import found_steps, step_at, step_spans
from rung.analysis.timeline import BEFORE, timeline
from rung.errors import UsageError
from rung.trace.ranks import of_rank
from rung.trace.table import GPU_KINDS, Trace

FEW = 0.02  # of the GPU's time: so much from before the first step does not change the figures of a step


def divisor(trace: Trace) -> tuple[int, str]:
    """(the number of recorded steps, "") where they make up the recording; else (1, a sentence that says why not)."""
    return divisor_of(found_steps(trace), *before_steps(trace))


def before_steps(trace: Trace) -> tuple[int, int]:
    """The GPUs' time before the first work of the recorded steps, and all of it, in ns."""
    table = timeline(trace)
    before = table.filter(pl.col("step") == BEFORE)["total_ns"].sum()
    return int(before), int(table.filter(pl.col("step").is_null())["total_ns"].sum())


def divisor_of(steps: int, before: int, whole: int) -> tuple[int, str]:
    """The same, of a number of recorded steps and what `before_steps` says."""
    if steps == 0 or before <= whole * FEW:
        return max(steps, 1), ""
    return 1, (
        f"{100 * before / whole:.0f} % of the GPU's time comes before the first work of the recorded step{'s' * (steps > 1)}: "
        "figures are of the whole recording. --step all leaves out work that was launched before the steps."
    )


def of_steps(trace: Trace, wanted: set[int] | None) -> Trace:
    """The recording of these steps (None: of all recorded ones): host events that begin in them or run through them,
    and the GPU events launched in them.

    Raises UsageError where the trace has no such step.
    """
    spans = step_spans(trace)
    chosen = spans if wanted is None else spans.filter(pl.col("step").is_in(list(wanted)))
    missing = sorted((wanted or set()) - set(chosen["step"].to_list()))
    if chosen.is_empty() or missing:
        known = spans["step"].unique().sort().to_list()
        if not known:
            raise UsageError("the trace has no step: torch.profiler marks one at each call of its step().")
        raise UsageError(f"the trace has no step {missing[0]}: its steps are {', '.join(map(str, known))}.")
    events = trace.events.with_row_index("row").with_columns(end=pl.col("ts") + pl.col("dur"))
    on_gpu = pl.col("kind").is_in(GPU_KINDS) & pl.col("device").is_not_null()
    launched_in = step_at(trace, gpu_events(trace).select("rank", pid="process", at="launched"))
    kept = [events.filter(on_gpu)["row"].filter(launched_in.is_in(chosen["step"].implode()).fill_null(False))]
    for rank, pid, ts, end in chosen.select("rank", pl.col("pid").cast(pl.String), "ts", "end").iter_rows():
        others = (
            spans.filter(of_rank(rank), pl.col("pid") != pid)["pid"].unique().cast(pl.String)
        )  # that mark steps of their own
        mine = (
            (of_rank(rank), ~pl.col("pid").cast(pl.String).is_in(others.implode()))
            if others.len()
            else (of_rank(rank),)
        )
        kept.append(events.filter(~on_gpu, *mine, pl.col("ts") < end, pl.col("end") > ts)["row"])
    rows = pl.concat(kept).unique().sort()
    low, high = int(chosen["ts"].to_numpy().min()), int(chosen["end"].to_numpy().max())
    return replace(
        trace, events=trace.events[rows], memory=trace.memory.filter(pl.col("ts") >= low, pl.col("ts") < high)
    )
