"""Which group of ranks has a slow link: its collectives take longer than the same ones of other groups."""

from __future__ import annotations

import polars as pl

from rung.analysis.collectives import matched
from rung.trace.table import Trace

LEAST_LIKE = 3  # groups that do the same: of two nobody knows which is the slow one
LEAST_TIMES = 1.2  # as long as the median: a group that is nearer to it is no finding
SCHEMA: dict[str, pl.DataType] = {
    "collective": pl.String(),
    "size_bytes": pl.Int64(),
    "group": pl.String(),
    "group_ranks": pl.String(),
    "times": pl.Float64(),
    "transfer_ns": pl.Int64(),
    "others_transfer_ns": pl.Int64(),
    "bus_gb_per_s": pl.Float64(),
    "others_bus_gb_per_s": pl.Float64(),
    "count": pl.Int64(),
    "groups": pl.Int64(),
    "group_size": pl.Int64(),
}


def slow_groups(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row for each group of ranks, kind and size of collective whose transfer is slow, the slowest first. It takes at least 1.2 times as
    long as the median of the groups of the same size that do the same. There must be three such groups or more, with the traces of all their ranks.

    The figures are of the whole recording.

    group_ranks: its ranks, as recorded.
    times: transfer_ns / others_transfer_ns.
    transfer_ns, bus_gb_per_s: the group's median over its operations, as in `collectives`.
    others_transfer_ns, others_bus_gb_per_s: the median over the groups.
    count: its operations.
    groups: how many groups do the same.
    """
    return slower(matched(trace).lazy())


def slower(operations: pl.LazyFrame) -> pl.DataFrame:
    """The rows of `slow_groups`. operations: as `collectives.operations` gives them."""
    alike = ("collective", "size_bytes", "dtype", "group_size")
    of_group = (
        operations.filter(pl.col("ranks") == pl.col("group_size"), pl.col("ranks") > 1)
        .group_by(*alike, "group", "group_ranks")
        .agg(pl.col("transfer_ns", "bus_gb_per_s").median(), count=pl.len())
    )
    others = of_group.group_by(alike).agg(
        pl.col("transfer_ns", "bus_gb_per_s").median().name.prefix("others_"), groups=pl.len()
    )
    times = pl.col("transfer_ns") / pl.col("others_transfer_ns")
    return (
        of_group.join(others, on=alike, nulls_equal=True)
        .with_columns(times=times)
        .filter(pl.col("groups") >= LEAST_LIKE, pl.col("times") >= LEAST_TIMES)
        .sort("times", "size_bytes", "group", descending=[True, True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
        .collect()
    )
