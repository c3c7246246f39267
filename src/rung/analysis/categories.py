"""What kind of work takes the GPU's time?"""

from __future__ import annotations

import polars as pl

from rung.analysis.classified import classified
from rung.trace.table import Trace


def categories(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a category and detail, over all ranks and devices, the one with most time first.

    category, detail: the kind of work (`classifier.CATEGORIES` and what a user added), as in attention, backward.
    events: GPU events a step. time_ns: sum of their durations a step; they may overlap, so the sum may exceed the
    busy time. share: of the durations of all GPU events, which the rows add up to. mean_ns: of one event.
    largest: the kernel with most time in it.
    """
    events = classified(trace)
    kernels = (
        events.group_by("category", "detail", "name")
        .agg(pl.col("dur").sum())
        .sort("dur", "name", descending=[True, False])
    )
    largest = kernels.group_by("category", "detail").agg(largest=pl.col("name").first())
    dur = pl.col("dur")
    return (
        events.group_by("category", "detail")
        .agg(
            events=pl.len() / steps,
            time_ns=dur.sum(),
            mean_ns=dur.mean().round().cast(pl.Int64),
        )
        .with_columns(share=pl.col("time_ns") / pl.col("time_ns").sum(), time_ns=(pl.col("time_ns") / steps).round().cast(pl.Int64))
        .join(largest, on=["category", "detail"])
        .sort("time_ns", "category", "detail", descending=[True, False, False])
        .select("category", "detail", "events", "time_ns", "share", "mean_ns", "largest")
    )  # fmt: skip
