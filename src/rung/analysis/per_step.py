"""By how many steps to divide what a recording holds; and a recording of some of its steps only."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rung.analysis.gpu_events import gpu_events
from rung.analysis.once import once
from rung.analysis.steps import found_steps, step_at, step_spans
from rung.analysis.timeline import BEFORE, timeline
from rung.errors import UsageError
from rung.trace.ranks import of_rank
from rung.trace.table import GPU_KINDS, Trace

MOST_NAMED = 8  # processes in a note
FEW = 0.02  # of the GPU's time: so much from before the first step does not change the figures of a step

OF_WHOLE = "figures are of the whole recording."


def per_step(trace: Trace) -> tuple[Trace, int, str]:
    """The recording to analyze, by how many steps to divide its figures, and what there is to say of that.

    Where processes recorded different numbers of steps, it is that of the steps that all of them have.
    """
    common, lacking = common_steps(trace)
    if not common:
        return trace, *divisor(trace)
    trace = of_steps(trace, common)
    steps, note = divisor(trace)
    many = f"step{'s' * (len(common) > 1)} that all recorded"
    return trace, steps, " ".join([f"{lacking}: figures are of the {len(common)} {many}.", *([note] if note else [])])


def divisor(trace: Trace) -> tuple[int, str]:
    """(the number of recorded steps, "") where they make up the recording; else (1, a sentence that says why not)."""
    if lacking := common_steps(trace)[1]:
        return 1, f"{lacking}: {OF_WHOLE}"
    return divisor_of(found_steps(trace), *before_steps(trace))


@once
def common_steps(trace: Trace) -> tuple[set[int], str]:
    """The steps that all processes recorded, and which of these recorded fewer than there are; nothing where all recorded as many."""
    spans = step_spans(trace).with_columns(pl.col("pid").cast(pl.String))
    found = spans.group_by("rank", "pid", maintain_order=True).agg(pl.col("step").unique())
    numbers = [set(steps) for steps in found["step"]]
    if len({len(steps) for steps in numbers}) < 2:
        return set(), ""
    every = set.union(*numbers)
    several = found["rank"].is_duplicated()
    lacking = [
        f"{_process(rank, pid if many else None)} recorded {len(steps)} of {len(every)} steps"
        for rank, pid, steps, many in zip(found["rank"], found["pid"], numbers, several, strict=True)
        if steps != every
    ]
    return set.intersection(*numbers), some_of(lacking)


def some_of(sentences: list[str]) -> str:
    """The first few of them, in one."""
    return ", ".join(sentences[:MOST_NAMED]) + (", ..." if len(sentences) > MOST_NAMED else "")


def _process(rank: int | None, pid: str | None) -> str:
    named = [f"process {pid}"] * (pid is not None) + [f"rank {rank}"] * (rank is not None)
    return " of ".join(named)


def before_steps(trace: Trace) -> tuple[int, int]:
    """The GPUs' time before the first work of the recorded steps, and all of it, in ns."""
    table = timeline(trace)
    before = table.filter(pl.col("step") == BEFORE)["total_ns"].sum()
    return int(before), int(table.filter(pl.col("step").is_null())["total_ns"].sum())


def divisor_of(steps: int, before: int, whole: int) -> tuple[int, str]:
    """As `divisor`, of a number of recorded steps and what `before_steps` says."""
    if steps == 0 or before <= whole * FEW:
        return max(steps, 1), ""
    return 1, (
        f"{100 * before / whole:.0f}% of the GPU's time comes before the first work of the recorded step{'s' * (steps > 1)}: "
        f"{OF_WHOLE} --step all leaves out work that was launched before the steps."
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
        mine = events.filter(~on_gpu, of_rank(rank), pl.col("ts") < end, pl.col("end") > ts)
        others = spans.filter(of_rank(rank), pl.col("pid") != pid)["pid"].unique().cast(pl.String)
        if others.len():  # which mark steps of their own
            mine = mine.filter(~pl.col("pid").cast(pl.String).is_in(others.implode()))
        kept.append(mine["row"])
    rows = pl.concat(kept).unique().sort()
    low, high = int(chosen["ts"].to_numpy().min()), int(chosen["end"].to_numpy().max())
    return replace(
        trace, events=trace.events[rows], memory=trace.memory.filter(pl.col("ts") >= low, pl.col("ts") < high)
    )
