"""Where each GPU event comes from: the call that launched it, and the operator that made the call."""

from __future__ import annotations

import polars as pl

from rung.analysis.gpu_events import NO_RANK, gpu_events
from rung.analysis.nesting import callers, nearest
from rung.analysis.once import once
from rung.analysis.runtime_roles import role, with_role
from rung.trace.table import Trace


@once
def host_calls(trace: Trace) -> pl.DataFrame:
    """The operators, runtime calls and annotations of the host, with `end` (ns), `row` (in trace.events) and nesting:

    caller: the position here of the innermost of them around it, on the same thread; -1 at the top.
    op: the position here of the innermost operator around it, itself if it is one, -1 where there is none.
    """
    calls = (
        trace.events.with_row_index("row")
        .filter(pl.col("kind").is_in(["cpu_op", "runtime", "annotation"]))
        .with_columns(end=pl.col("ts") + pl.col("dur"))
    )
    thread = calls.select(pl.struct("rank", "pid", "tid").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    caller = callers(calls["ts"].to_numpy(), calls["end"].to_numpy(), thread)
    op = nearest(caller, (calls["kind"] == "cpu_op").to_numpy())
    return calls.with_columns(caller=pl.Series(caller, dtype=pl.Int64), op=pl.Series(op, dtype=pl.Int64))


@once
def runtime_calls(trace: Trace) -> pl.DataFrame:
    """The runtime calls of `host_calls`, with their `position` there and their `role` (runtime_calls.toml)."""
    calls = host_calls(trace).with_row_index("position").filter(pl.col("kind") == "runtime")
    return with_role(calls.with_columns(pl.col("position").cast(pl.Int64)))


@once
def origins(trace: Trace) -> pl.DataFrame:
    """The GPU events of `timeline.gpu_events` with what launched them, in file order:

    launch: the position in `host_calls` of the runtime call with the event's correlation id, null where the trace has
        none (launched before the recording began). Of several calls with one id, the first.
    op: the position in `host_calls` of the innermost operator around the launch; where no operator is, of the one
        with the event's external id; null where there is none, and for what a graph replays.
    graph: replayed by the launch of a graph, whose kernels are no operator's own work.
    """
    calls = host_calls(trace).with_row_index("position")
    rank = pl.col("rank").fill_null(NO_RANK)
    launches = (
        calls.filter(pl.col("kind") == "runtime", pl.col("correlation").is_not_null())
        .select(rank, "correlation", launch=pl.col("position").cast(pl.Int64), around=pl.col("op"), call="name")
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
    )
    named = (
        calls.filter(pl.col("kind") == "cpu_op", pl.col("external_id").is_not_null())
        .select(rank, "external_id", named=pl.col("position").cast(pl.Int64))
        .unique(["rank", "external_id"], keep="first", maintain_order=True)
    )
    replays = [name for name in launches["call"].unique() if role(name) == "graph launch"]
    graph = pl.col("call").is_in(replays).fill_null(False)
    around = pl.when(pl.col("around") >= 0).then("around")
    return (
        gpu_events(trace)
        .with_columns(rank)
        .join(launches, on=["rank", "correlation"], how="left", maintain_order="left")
        .join(named, on=["rank", "external_id"], how="left", maintain_order="left")
        .with_columns(graph=graph, op=pl.when(~graph).then(pl.coalesce(around, "named")))
        .with_columns(pl.when(pl.col("rank") != NO_RANK).then("rank").alias("rank"))
        .drop("around", "named", "call")
    )


def op_column(trace: Trace, column: str) -> pl.Series:
    """A column of `host_calls` for the operator of each GPU event of `origins`, null where there is none."""
    return host_calls(trace)[column].gather(origins(trace)["op"])


def launch_column(trace: Trace, column: str) -> pl.Series:
    """A column of `host_calls` for the launch of each GPU event of `origins`, null where there is none."""
    return host_calls(trace)[column].gather(origins(trace)["launch"])
