"""Why is the GPU idle?"""

from __future__ import annotations

import polars as pl

from rung.analysis.gaps import caused
from rung.trace.table import Trace


def idle(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a cause and what the host did meanwhile, over all ranks and devices, most idle time first.

    cause, during, call_site: as in `gaps`. count: gaps a step. time_ns: a step. share: of all idle time; the rows add
    up to idle in `timeline`. longest_ns: the longest gap.
    """
    gap = pl.col("gap_ns")
    return (
        caused(trace)
        .group_by("cause", "during", "call_site")
        .agg(count=pl.len() / steps, total=gap.sum(), longest_ns=gap.max())
        .sort("total", "cause", "during", "call_site", descending=[True, False, False, False], nulls_last=True)
        .select(
            (pl.col("total") / steps).round().cast(pl.Int64).alias("time_ns"),
            (pl.col("total") / pl.col("total").sum()).alias("share"), "count", "cause", "during", "call_site", "longest_ns",
        )
    )  # fmt: skip
