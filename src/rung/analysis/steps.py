"""The steps that were recorded: torch.profiler marks them with annotations `ProfilerStep#N`, and those of the optimizer."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.once import once
from rung.trace.ranks import NO_RANK
from rung.trace.table import Trace

STEP = r"^ProfilerStep#(\d+)$"
OPTIMIZER_STEP = "Optimizer.step#"  # how torch marks one
_BACKWARD = "autograd::engine::evaluate_function"


@once
def step_spans(trace: Trace) -> pl.DataFrame:
    """The steps on the host, by rank and start: `rank`, `pid` of the process that marked it, `step` (its number), `ts`, `end` in ns."""
    return (
        trace.events.filter(pl.col("kind") == "annotation")  # first: names are many
        .filter(pl.col("name").str.starts_with("ProfilerStep#"))
        .select("rank", "pid", "ts", step=pl.col("name").str.extract(STEP).cast(pl.Int64, strict=False), end=pl.col("ts") + pl.col("dur"))
        .filter(pl.col("step").is_not_null())
        .sort("rank", "ts")
    )  # fmt: skip


def found_steps(trace: Trace) -> int:
    """How many steps a process recorded, the most of any; 0 where the trace does not say."""
    most = step_spans(trace).group_by("rank", "pid").agg(pl.col("step").n_unique())["step"].max()
    return most if isinstance(most, int) else 0


def step_at(trace: Trace, moments: pl.DataFrame) -> pl.Series:
    """The recorded step in which each moment on the host lies (`rank`, `pid`, `at` in ns); null where it lies in none.

    Where several processes of a rank mark steps, as in one file of Nsight Systems, a moment lies in a step of its own process only.
    """
    spans = step_spans(trace)
    several = spans.group_by("rank").agg(pl.col("pid").n_unique()).filter(pl.col("pid") > 1)
    rank = pl.col("rank").fill_null(NO_RANK)
    marked_by_several = rank.is_in(several.select(rank).to_series().implode())
    process = pl.when(marked_by_several).then(pl.col("pid").cast(pl.String)).otherwise(pl.lit("")).alias("process")
    asked = moments.select("at", rank, process).with_row_index("row").sort("at", nulls_last=True)
    steps = spans.select("step", "ts", "end", rank, process).sort("ts")
    found = asked.join_asof(steps, left_on="at", right_on="ts", by=["rank", "process"], check_sortedness=False)
    return found.sort("row").select(step=pl.when(pl.col("at") < pl.col("end")).then("step")).to_series()


def plain_steps(events: pl.DataFrame) -> pl.Series:
    """Of each event, whether it is an optimizer's step during which no backward pass ran. Only what such a step calls is the optimizer's:
    Lightning, and L-BFGS, run the forward and backward pass inside of `step`, as a closure."""
    process = pl.concat_str(pl.col("rank", "pid").cast(pl.String).fill_null(""), separator=" ").alias("process")
    begins = pl.col("name").str.starts_with
    found = events.select((pl.col("kind") == "annotation") & begins(OPTIMIZER_STEP)).to_series().fill_null(False)
    if not found.any():
        return found
    steps = events.with_row_index("at").filter(found).select("at", "ts", "dur", process)
    nodes = events.filter(pl.col("kind") == "cpu_op", begins(_BACKWARD)).select("ts", process)
    backward = {key[0]: np.sort(part["ts"].to_numpy()) for key, part in nodes.group_by("process")}
    plain = found.to_numpy().copy()
    for at, ts, duration, key in steps.iter_rows():
        if key in backward:
            first, last = np.searchsorted(backward[key], (ts, ts + duration))
            plain[at] = first == last
    return pl.Series(plain)
