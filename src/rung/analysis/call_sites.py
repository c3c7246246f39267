"""Which lines of Python take the GPU's time?"""

from __future__ import annotations

import polars as pl

from rung.analysis.classified import classified
from rung.analysis.frames import enclosing, launching_user_frames, place
from rung.analysis.spending import part, spending, without
from rung.trace.table import Trace


def call_sites(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a function of the user's program and libraries (PyTorch's left out), as in `model.py(12): forward`.

    The trace must have been recorded with stacks. GPU work counts for the innermost such function around its
    operator; that of a backward operator for the function that called the forward one; that of a graph for the one
    that captured it, where a capture trace tells, else for the one that replayed it. Work without one has a row of its own, so that the times add up to that of all GPU events.
    count: GPU events a step. time_ns: a step, the sum of durations. share, cumulative_share: of all GPU events.
    backward_share, graph_share: the fraction of its time. mean to std: of one GPU event.
    """
    frames = launching_user_frames(trace)
    of_event, _ = enclosing(trace, frames)
    named = (
        classified(trace)
        .select(
            "dur", "backward", "graph", call_site=pl.coalesce(frames["name"].gather(of_event), without("Python frame"))
        )
        .with_columns(place())
    )
    ranked = spending(named, ["call_site"], steps, [part("backward", "backward"), part("graph", "graph")])
    return ranked.select(
        "time_ns", "share", "count", "call_site", "backward_share", "graph_share", "mean_ns", "cumulative_share",
        "median_ns", "min_ns", "max_ns", "std_ns",
    )  # fmt: skip
