"""The calls of the host: operators, runtime calls, annotations; those of the trace, and those that captured its graphs."""

from __future__ import annotations

import polars as pl

from rung.analysis.nesting import callers, nearest
from rung.analysis.once import once
from rung.analysis.runtime_roles import with_role
from rung.analysis.stabbing import THREAD_NUMBER
from rung.trace.table import SCHEMA, Trace


@once
def host_calls(trace: Trace) -> pl.DataFrame:
    """The operators, runtime calls and annotations of the host, with `end` (ns), `row` (in trace.events) and nesting:

    caller: the position here of the innermost of them around it, on the same thread; -1 at the top.
    op: the position here of the innermost operator around it, itself if it is one, -1 where there is none.
    """
    return _nested(trace.events)


@once
def captured_calls(trace: Trace) -> pl.DataFrame:
    """The same of the capture traces, with positions of its own: `row` is that in trace.captured.events."""
    return _nested(trace.captured.events if trace.captured else pl.DataFrame(schema=SCHEMA))


@once
def launching_calls(trace: Trace) -> pl.DataFrame:
    """What GPU events were launched by: `host_calls`, and behind them `captured_calls`, one numbering for both."""
    own, captured = host_calls(trace), captured_calls(trace)
    if captured.is_empty():
        return own
    moved = [
        pl.when(pl.col(name) >= 0).then(pl.col(name) + own.height).otherwise(-1).alias(name)
        for name in ("caller", "op")
    ]
    return pl.concat([own, captured.with_columns(moved)])


@once
def runtime_calls(trace: Trace) -> pl.DataFrame:
    """The runtime calls of `host_calls`, with their `position` there and their `role` (runtime_calls.toml)."""
    calls = host_calls(trace).with_row_index("position").filter(pl.col("kind") == "runtime")
    return with_role(calls.with_columns(pl.col("position").cast(pl.Int64)))


def _nested(events: pl.DataFrame) -> pl.DataFrame:
    calls = (
        events.drop("device", "stream", "bytes")  # of GPU events
        .with_row_index("row")
        .filter(pl.col("kind").is_in(["cpu_op", "runtime", "annotation"]))
        .with_columns(end=pl.col("ts") + pl.col("dur"))
    )
    # In one piece, column by column: with columns in different pieces each step would copy them all.
    calls = pl.DataFrame([calls.drop_in_place(name).rechunk() for name in calls.columns])
    thread = calls.select(THREAD_NUMBER).to_series().to_numpy()
    caller = callers(calls["ts"].to_numpy(), calls["end"].to_numpy(), thread)
    op = nearest(caller, (calls["kind"] == "cpu_op").to_numpy())
    return calls.with_columns(caller=pl.Series(caller, dtype=pl.Int64), op=pl.Series(op, dtype=pl.Int64))
