"""One row a dispatch, one column a counter: the counters table turned, with the time of each dispatch beside it."""

from __future__ import annotations

import re

import polars as pl

from rung.trace.table import Trace

KEYS = ("rank", "device", "kernel", "place")
REPLAYED = "gpu__time_duration.sum"  # Nsight Compute, ns
_CHANNEL = re.compile(r"^(.*)\[\d+\]$")


def wide(trace: Trace) -> pl.DataFrame:
    """rank, device, kernel, place (of the dispatch in its run, from 0; among its kernel's own where the trace does not number
    them), ns (null where the dispatch was not timed), and a column of float64 a counter. Channels are added up.
    """
    values = trace.counters
    if values.is_empty():
        return pl.DataFrame(
            schema={"rank": pl.Int32, "device": pl.Int32, "kernel": pl.String, "place": pl.Int64, "ns": pl.Float64}
        )
    names = values["counter"].unique().to_list()
    whole = {name: (found[1] if (found := _CHANNEL.match(name)) else name) for name in names}
    there = {name for name in names if not _CHANNEL.match(name)}
    # A counter that is there as a sum, too, is not counted twice.
    dropped = [n for n, base in whole.items() if base != n and (base in there or f"{base}_sum" in there)]
    nth = pl.int_range(pl.len()).over("rank", "device", "kernel", "counter")
    numbered = values.filter(~pl.col("counter").is_in(dropped)).with_columns(
        numbered=pl.col("correlation").is_not_null(), place=pl.coalesce("correlation", nth)
    )
    # Passes of one run may have a counter of a dispatch several times: their mean holds.
    once = numbered.group_by("rank", "device", "kernel", "numbered", "place", "counter").agg(pl.col("value").mean())
    table = (
        once.with_columns(counter=pl.col("counter").replace(whole))
        .group_by("rank", "device", "kernel", "numbered", "place", "counter")
        .agg(pl.col("value").sum())
        .pivot("counter", index=["rank", "device", "kernel", "numbered", "place"], values="value")
    )
    kernels = trace.events.filter(pl.col("kind") == "kernel").select(
        "rank", "device", kernel="name", correlation="correlation", ns=pl.col("dur").cast(pl.Float64)
    )
    kernels = kernels.with_columns(nth=pl.int_range(pl.len()).over("rank", "device", "kernel"))
    table = table.with_columns(nth=pl.col("place"))
    parts = []
    for known, key in ((True, "place"), (False, "nth")):
        right = kernels.rename({"correlation": "place"}) if known else kernels
        times = right.unique(["rank", "device", "kernel", key]).select("rank", "device", "kernel", key, "ns")
        parts.append(
            table.filter(pl.col("numbered") == known).join(
                times, on=["rank", "device", "kernel", key], how="left", nulls_equal=True
            )
        )
    both = pl.concat(parts).drop("numbered", "nth")
    if REPLAYED in both.columns:  # ncu times each kernel and puts none on a timeline
        both = both.with_columns(ns=pl.coalesce("ns", REPLAYED))
    # A dispatch that takes no time was not timed: spreadsheets round such columns, and a rate would be infinite.
    timed = pl.when(pl.col("ns") > 0).then("ns")
    return both.with_columns(ns=timed).sort("rank", "place", "kernel", "device")
