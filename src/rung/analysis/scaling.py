"""What do many ranks lose by waiting for each other, for links and for their hosts?"""

from __future__ import annotations

import polars as pl

from rung.analysis.timeline import BEFORE, timeline
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int64(),
    "ranks": pl.Int64(),
    "step_ns": pl.Int64(),
    "slowest_rank": pl.Int32(),
    "mean_step_ns": pl.Int64(),
    "computation_ns": pl.Int64(),
    "exposed_communication_ns": pl.Int64(),
    "idle_ns": pl.Int64(),
    "efficiency_share": pl.Float64(),
    "balance_share": pl.Float64(),
    "communication_share": pl.Float64(),
    "host_share": pl.Float64(),
}


def scaling(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a recorded step (one for the whole recording if no step is marked), over all ranks with a GPU each.

    efficiency_share is the product of balance_share, communication_share and host_share.

    ranks: how many there are.
    step_ns: the longest over the ranks.
    slowest_rank: whose it is.
    mean_step_ns, computation_ns, exposed_communication_ns, idle_ns: the mean over the ranks, as in `timeline`.
    efficiency_share: mean computation / step_ns: what is left of a GPU that has nothing to wait for.
    balance_share: mean / most computation of a rank: is the work divided evenly?
    communication_share: most computation / most computation and exposed communication: links, and waiting for other ranks.
    host_share: most computation and exposed communication / step_ns: does the GPU have work? Copies count as idle.
    """
    return efficiencies(step_sums(timeline(trace)))


def step_sums(timeline: pl.DataFrame) -> pl.DataFrame:
    """Sums and extremes of each step over the ranks. timeline: as the analysis gives it, of some of the ranks or of all."""
    rows = timeline.filter(pl.col("step").is_null() | (pl.col("step") != BEFORE))
    rows = rows.with_columns(used_ns=pl.col("computation_ns") + pl.col("exposed_communication_ns"))
    return rows.group_by("step", maintain_order=True).agg(
        pl.len().alias("ranks"),
        pl.col("total_ns", "computation_ns", "exposed_communication_ns", "idle_ns").sum(),
        pl.col("rank").sort_by("total_ns").last().alias("slowest_rank"),
        pl.col("total_ns", "computation_ns", "used_ns").max().name.prefix("most_"),
    )


def efficiencies(sums: pl.DataFrame) -> pl.DataFrame:
    """The table of `scaling`. sums: of `step_sums`, one row a step or several, each of other ranks."""
    sums = sums.filter(pl.col("step").is_not_null()) if sums["step"].is_not_null().any() else sums
    names = ("total_ns", "computation_ns", "exposed_communication_ns", "idle_ns")
    found = sums.group_by("step").agg(
        pl.col("slowest_rank").sort_by("most_total_ns").last(),
        pl.col("ranks", *names).sum(),
        pl.col("^most_.*$").max(),
    )
    mean, most, used = pl.col("computation_ns") / pl.col("ranks"), pl.col("most_computation_ns"), pl.col("most_used_ns")
    shares = {
        "efficiency_share": mean / pl.col("most_total_ns"),
        "balance_share": mean / most,
        "communication_share": most / used,
        "host_share": used / pl.col("most_total_ns"),
    }
    return (
        found.with_columns(**{name: pl.when(share.is_finite()).then(share) for name, share in shares.items()})
        .with_columns((pl.col(names) / pl.col("ranks")).round(), step_ns="most_total_ns")
        .with_columns(mean_step_ns="total_ns")
        .sort("step")
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
    )
