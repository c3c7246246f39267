"""What ran on the GPUs, what kind of work it was to a timeline, and what launched it, as the trace itself says it."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.communicators import communicating_kernel, communicating_op
from rung.analysis.once import once
from rung.analysis.runtime_roles import role
from rung.trace.ranks import NO_RANK
from rung.trace.table import GPU_KINDS, Trace

RUNTIME_COPY = "MEMORY_COPY_|__amd_rocclr_copyBuffer"  # ROCm <= 7.1 records copies as kernels of these names


@once
def gpu_events(trace: Trace) -> pl.DataFrame:
    """The kernels, copies and memsets of a trace, in file order, with `end` (ns), `launched`, `process`, `linked` and `role`.

    launched: when the runtime call with the event's correlation id began, of several calls of that id the first. process: the `pid` of that call.
    linked: there is such a call in the trace. An event without one was launched before the recording began; it is
    real work and counts. role: computation, communication or memcpy. communicator: the operator that communicates by a
    kernel, whatever the kernel's name is; null where none is known.
    """
    names = trace.events.lazy().filter(pl.col("kind") == "kernel").select(pl.col("name").unique()).collect()["name"]
    communicating = [name for name in names if communicating_kernel(name) is not None]
    key = (pl.col("rank").fill_null(NO_RANK), pl.col("correlation"))
    launches = (
        trace.events.lazy()
        .filter(pl.col("kind") == "runtime", pl.col("correlation").is_not_null())
        .select(*key, launched="ts", process="pid")
        .unique(["rank", "correlation"], keep="first")
    )
    kernel = pl.col("kind") == "kernel"
    return (
        trace.events.lazy()
        .filter(pl.col("kind").is_in(GPU_KINDS), pl.col("device").is_not_null())
        .with_columns(key[0])
        .join(launches, on=["rank", "correlation"], how="left", maintain_order="left")
        .join(_communicators(trace), on=["rank", "external_id"], how="left", maintain_order="left")
        .with_columns(communicator=pl.when(kernel).then("communicator"))
        .with_columns(
            pl.when(pl.col("rank") != NO_RANK).then("rank").alias("rank"),
            end=pl.col("ts") + pl.col("dur"),
            linked=pl.col("launched").is_not_null(),
            role=pl.when((pl.col("kind") == "memcpy") | (kernel & pl.col("name").str.contains(RUNTIME_COPY)))
            .then(pl.lit("memcpy"))
            .when(kernel & (pl.col("name").is_in(communicating) | pl.col("communicator").is_not_null()))
            .then(pl.lit("communication"))
            .otherwise(pl.lit("computation")),
        )
        .collect()
    )


def _communicators(trace: Trace) -> pl.LazyFrame:
    """The operators that communicate, by `rank` and `external_id`, but for those whose kernels all say so themselves."""
    ops = trace.events.lazy().filter(pl.col("kind") == "cpu_op")
    names = ops.select(pl.col("name").unique()).collect()["name"]
    chosen = [name for name in names if (found := communicating_op(name)) is not None and found.collective]
    return (
        ops.filter(pl.col("name").is_in(chosen), pl.col("external_id").is_not_null())
        .select(pl.col("rank").fill_null(NO_RANK), "external_id", communicator="name")
        .unique(["rank", "external_id"], keep="first")
    )


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
