"""What does the host spend on calls of the GPU's runtime?"""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import runtime_calls
from rung.analysis.runtime_roles import LAUNCHING
from rung.analysis.spending import spending
from rung.trace.table import Trace


def runtime(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a runtime or driver call by name, over all threads and ranks, most host time first.

    role: what the call is for (runtime_calls.toml): launch, graph launch, synchronize, copy, blocking copy, wait, memory, capture,
    load code, query, other. count, time_ns: a step, on the host. share: of all these calls. per_launch: how many of
    it there are for each call that launches GPU work: a query at 5 a launch is called too often.
    """
    calls = runtime_calls(trace)
    launches = max(1, calls.filter(pl.col("role").is_in(LAUNCHING)).height)
    ranked = spending(calls, ["name", "role"], steps)
    return ranked.with_columns(per_launch=pl.col("count") * steps / launches).select(
        "time_ns", "share", "count", "name", "role", "per_launch", "mean_ns", "cumulative_share",
        "median_ns", "max_ns", "min_ns", "std_ns",
    )  # fmt: skip
