"""Which operators, at which shapes, take the GPU's time?"""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.classified import classified
from rung.analysis.spending import spending, without
from rung.trace.table import Trace

_INPUTS = ("dims", "dtypes", "strides")


def ops(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row an operator with its input shapes, dtypes and strides (as recorded), most GPU time first.

    op: the innermost operator around the launch, of what a graph replayed around the captured one, where a capture trace
    tells it. Work without one has a row as well: what a graph replayed, what was launched outside of the trace, what no
    operator launched. So the times add up to that of all GPU events.
    count: calls a step (of work without an operator: GPU events). kernels: GPU events a step. time_ns: GPU time a
    step, the sum of durations. share, cumulative_share: of all. mean to std: of one call. category: of its largest part.
    """
    events = classified(trace).with_row_index("event")
    calls = launching_calls(trace)
    inputs = [calls[name].gather(events["op"]).cast(pl.String).alias(name) for name in _INPUTS]
    named = events.select(
        "category", "dur", *inputs,
        op=pl.coalesce(calls["name"].gather(events["op"]), without("operator")),
        call=pl.coalesce("call", -1 - pl.col("event").cast(pl.Int64)),
    )  # fmt: skip
    keys = ["op", *_INPUTS]
    kinds = named.group_by(*keys, "category").agg(pl.col("dur").sum())
    kind = kinds.sort("dur", "category", descending=[True, False]).unique(keys, keep="first").drop("dur")
    per_call = named.group_by(*keys, "call").agg(pl.col("dur").sum(), events=pl.len())
    kernels = (pl.col("events").sum() / steps).alias("kernels")
    ranked = spending(per_call, keys, steps, [kernels])
    return ranked.join(kind, on=keys, how="left", nulls_equal=True, maintain_order="left").select(
        "time_ns", "share", "count", "op", "dims", "category", "kernels", "mean_ns", "cumulative_share", "dtypes", "strides",
        "median_ns", "min_ns", "max_ns", "std_ns",
    )  # fmt: skip
