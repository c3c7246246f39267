"""The steps that were recorded: torch.profiler marks them with annotations `ProfilerStep#N`."""

from __future__ import annotations

import polars as pl

from rung.analysis.once import once
from rung.trace.table import Trace

STEP = r"^ProfilerStep#(\d+)$"


@once
def step_spans(trace: Trace) -> pl.DataFrame:
    """The steps on the host, by rank and start: `rank`, `step` (its number), `ts`, `end` in ns."""
    return (
        trace.events.filter(pl.col("kind") == "annotation")  # first: names are many
        .filter(pl.col("name").str.starts_with("ProfilerStep#"))
        .select("rank", "ts", step=pl.col("name").str.extract(STEP).cast(pl.Int64, strict=False), end=pl.col("ts") + pl.col("dur"))
        .filter(pl.col("step").is_not_null())
        .sort("rank", "ts")
    )  # fmt: skip


def found_steps(trace: Trace) -> int:
    """How many steps a rank recorded, the most of any rank; 0 where the trace does not say."""
    spans = step_spans(trace)
    most = spans.group_by("rank").agg(pl.col("step").n_unique())["step"].max()
    return most if isinstance(most, int) else 0
