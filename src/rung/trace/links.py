"""Which row belongs to which: a GPU event to the call that launched it, a counter to the kernel it counted."""

from __future__ import annotations

import polars as pl

from rung.trace.table import GPU_KINDS, Trace

_NO_RANK = -1  # a join has no equal nulls


def launches(trace: Trace) -> pl.DataFrame:
    """Pairs of rows (`launch`, `gpu`), in the order of the GPU events.

    Linked by correlation id within a rank. All kernels of a graph share the row of its launch; where several
    runtime calls carry one id (an HSA call inside a HIP call), the first row is the launch.
    """
    events = trace.events.lazy().with_row_index("row").filter(pl.col("correlation").is_not_null())
    key = (pl.col("rank").fill_null(_NO_RANK), pl.col("correlation"))
    calls = (
        events.filter(pl.col("kind") == "runtime")
        .select(*key, launch="row")
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
    )
    return (
        events.filter(pl.col("kind").is_in(GPU_KINDS))
        .select(*key, gpu="row")
        .join(calls, on=["rank", "correlation"], how="inner")
        .select("launch", "gpu")
        .sort("gpu")
        .collect()
    )


def counters_by_row(trace: Trace) -> tuple[dict[int, list[tuple[str, float]]], pl.DataFrame]:
    """The hardware counters of each kernel's row, and those whose dispatch has no row.

    A counter belongs to the first kernel of its rank with its correlation id, device and name.
    """
    if not trace.counters.height:
        return {}, trace.counters
    keys = ["of", "correlation", "device", "kernel"]
    of = pl.col("rank").fill_null(_NO_RANK).alias("of")
    kernels = (
        trace.events.with_row_index("row")
        .filter(pl.col("kind") == "kernel")
        .select("row", of, "correlation", "device", kernel="name")
        .unique(keys, keep="first", maintain_order=True)
    )
    joined = trace.counters.with_columns(of).join(kernels, on=keys, how="left", maintain_order="left")
    rows: dict[int, list[tuple[str, float]]] = {}
    for row, name, value in joined.filter(pl.col("row").is_not_null()).select("row", "counter", "value").iter_rows():
        rows.setdefault(row, []).append((name, value))
    return rows, joined.filter(pl.col("row").is_null()).drop("row", "of")
