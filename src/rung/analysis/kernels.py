"""Which kernels take the GPU's time?"""

from __future__ import annotations

import polars as pl

from rung.analysis.classified import classified
from rung.analysis.spending import part, spending
from rung.trace.table import Trace


def kernels(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a name of GPU events (kernels, copies, memsets), over all ranks and devices, most time first.

    category, detail: the kind of work, of its largest part where operators give one name several kinds.
    count, time_ns: a step. share, cumulative_share: of the durations of all GPU events. mean to std: of one event.
    graph_share, unlinked_share: the fraction of its time that a graph replayed, and that was launched outside of the
    trace: both are real work that cannot be joined with its operators.
    """
    events = classified(trace)
    kinds = events.group_by("name", "category", "detail").agg(pl.col("dur").sum())
    kind = kinds.sort("dur", "category", "detail", descending=[True, False, False]).unique("name", keep="first")
    ranked = spending(events, ["name"], steps, [part("graph", "graph"), part(~pl.col("linked"), "unlinked")])
    return ranked.join(kind.drop("dur"), on="name", maintain_order="left").select(
        "time_ns", "share", "count", "name", "category", "detail", "mean_ns", "cumulative_share",
        "median_ns", "min_ns", "max_ns", "std_ns", "graph_share", "unlinked_share",
    )  # fmt: skip
