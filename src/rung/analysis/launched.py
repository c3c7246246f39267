"""What launched each GPU event, as the trace itself says it."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.gpu_events import NO_RANK, gpu_events
from rung.analysis.once import once
from rung.analysis.runtime_roles import role
from rung.trace.table import Trace


@once
def launched(trace: Trace) -> pl.DataFrame:
    """The GPU events of `gpu_events` in file order, with the launch, op and graph of `origins`; op is null for what a
    graph replays.
    """
    events = gpu_events(trace)
    calls = host_calls(trace).lazy().with_row_index("position")
    rank = pl.col("rank").fill_null(NO_RANK)
    launches = (
        calls.filter(pl.col("kind") == "runtime", pl.col("correlation").is_not_null())
        .select(rank, "correlation", launch=pl.col("position").cast(pl.Int64), around=pl.col("op"), call="name")
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
        .collect()
    )
    named = (
        calls.filter(
            pl.col("kind") == "cpu_op", pl.col("external_id").is_in(events["external_id"].drop_nulls().implode())
        )
        .select(rank, "external_id", named=pl.col("position").cast(pl.Int64))
        .unique(["rank", "external_id"], keep="first", maintain_order=True)
        .collect()
    )
    replays = [name for name in launches["call"].unique() if role(name) == "graph launch"]
    graph = pl.col("call").is_in(replays).fill_null(False)
    around = pl.when(pl.col("around") >= 0).then("around")
    return (
        events.with_columns(rank)
        .join(launches, on=["rank", "correlation"], how="left", maintain_order="left")
        .join(named, on=["rank", "external_id"], how="left", maintain_order="left")
        .with_columns(graph=graph, op=pl.when(~graph).then(pl.coalesce(around, "named")))
        .with_columns(pl.when(pl.col("rank") != NO_RANK).then("rank").alias("rank"))
        .drop("around", "named", "call")
    )
