"""GPU time by any key: how often, how long, what share. The figures that every ranking here has."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

GRAPH = "(replayed by a graph)"
OUTSIDE = "(launched outside of the trace)"


def without(what: str) -> pl.Expr:
    """What stands in place of an operator, module or call site that a GPU event has none of."""
    return (
        pl.when("graph").then(pl.lit(GRAPH))
        .when(~pl.col("linked")).then(pl.lit(OUTSIDE))
        .otherwise(pl.lit(f"(no {what})"))
    )  # fmt: skip


def spending(items: pl.DataFrame, by: Sequence[str], steps: int, extra: Sequence[pl.Expr] = ()) -> pl.DataFrame:
    """Rows of `items` (each with `dur` in ns) grouped by some columns, the most time first.

    count and time_ns are per step; share is of all time, cumulative_share of this row and those above. mean, median,
    min, max, std (of the sample) are of one item. The times of all rows add up to that of all items.
    extra: further aggregates, put after the share.
    """
    dur = pl.col("dur")
    rounded = [
        dur.mean().round().cast(pl.Int64).alias("mean_ns"),
        dur.median().round().cast(pl.Int64).alias("median_ns"),
        dur.min().alias("min_ns"),
        dur.max().alias("max_ns"),
        dur.std().round().cast(pl.Int64).alias("std_ns"),
    ]
    grouped = items.group_by(by).agg(dur.sum().alias("total"), (pl.len() / steps).alias("count"), *extra, *rounded)
    ranked = grouped.sort("total", *by, descending=[True, *(False for _ in by)], nulls_last=True)
    total, more = pl.col("total"), [expression.meta.output_name() for expression in extra]
    return ranked.select(
        *by,
        "count",
        (total / steps).round().cast(pl.Int64).alias("time_ns"),
        (total / total.sum()).alias("share"),
        (total.cum_sum() / total.sum()).alias("cumulative_share"),
        *more,
        *(expression.meta.output_name() for expression in rounded),
    )


def part(condition: pl.Expr | str, name: str) -> pl.Expr:
    """The fraction of a group's time for which the condition holds, as a column `<name>_share`."""
    return (pl.col("dur").filter(condition).sum() / pl.col("dur").sum()).alias(f"{name}_share")
