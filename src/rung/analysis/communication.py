"""What does communication cost a step: each sort of collective, its bandwidth, waiting and exposure."""

from __future__ import annotations

import polars as pl

from rung.analysis.collectives import matched
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "collective": pl.String(),
    "size_bytes": pl.Int64(),
    "count": pl.Float64(),
    "transfer_ns": pl.Int64(),
    "waiting_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "hidden_share": pl.Float64(),
    "bus_gb_per_s": pl.Float64(),
    "ranks": pl.Int64(),
    "group_size": pl.Int64(),
    "dtype": pl.String(),
    "group": pl.String(),
    "algorithm": pl.String(),
    "link_gb_per_s": pl.Float64(),
}


def communication(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row for each kind, group, type and size of collective, the costliest first.

    Counts and times are of one step and one rank (the mean over ranks). transfer_ns + waiting_ns is the time that a rank spends in these
    collectives. If `ranks` is below `group_size`, the traces of other ranks are missing: then waiting cannot be told from transfer, and
    bus_gb_per_s is a lower bound.

    count: operations.
    transfer_ns: moving the data, without waiting for other ranks.
    waiting_ns: waiting for other ranks.
    exposed_ns: what of both no computation covers.
    hidden_share: what of both computation covers.
    bus_gb_per_s, algorithm, link_gb_per_s: as in `collectives`, the median over the operations.
    ranks: how many ranks have it.
    """
    return costs(matched(trace).lazy(), steps)


def costs(operations: pl.LazyFrame, steps: int) -> pl.DataFrame:
    """The rows of `communication`. operations: as `collectives.operations` gives them."""
    per = pl.col("ranks") * steps
    kinds = operations.group_by(
        "collective", "group", "dtype", "size_bytes", "group_size", "algorithm", maintain_order=True
    ).agg(
        pl.col("ranks").max(),
        count=pl.len() / steps,
        transfer_ns=(pl.col("transfer_ns") / steps).sum().round().cast(pl.Int64),
        waiting_ns=(pl.col("waiting_ns") / per).sum().round().cast(pl.Int64),
        exposed_ns=(pl.col("exposed_ns") / per).sum().round().cast(pl.Int64),
        hidden_share=1 - pl.col("exposed_ns").sum() / pl.col("spent_ns").sum().cast(pl.Float64),
        bus_gb_per_s=pl.col("bus_gb_per_s").median(),
        link_gb_per_s=pl.col("link_gb_per_s").median(),
    )
    ordered = kinds.sort(pl.col("transfer_ns") + pl.col("waiting_ns"), descending=True, maintain_order=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()).collect()
