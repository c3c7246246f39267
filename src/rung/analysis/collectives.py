"""How long did each collective take to transfer, how long did ranks wait in it, and was it hidden?"""

from __future__ import annotations

import polars as pl

from rung.analysis.collective_calls import POINT_TO_POINT, collective_calls
from rung.analysis.once import once
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int64(),
    "collective": pl.String(),
    "size_bytes": pl.Int64(),
    "transfer_ns": pl.Int64(),
    "skew_ns": pl.Int64(),
    "last_rank": pl.Int32(),
    "hidden_share": pl.Float64(),
    "bus_gb_per_s": pl.Float64(),
    "ranks": pl.Int64(),
    "group_size": pl.Int64(),
    "waiting_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "spent_ns": pl.Int64(),
    "matched": pl.String(),
    "group": pl.String(),
    "seq": pl.Int64(),
    "dtype": pl.String(),
    "algorithm_gb_per_s": pl.Float64(),
    "algorithm": pl.String(),
    "link_gb_per_s": pl.Float64(),
}


def collectives(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a collective operation, matched over the ranks that are there, in the order of the first rank's.

    step: the profiler's step.
    transfer_ns: the shortest duration over the ranks. The last rank to arrive waits for nobody, so this is the transfer without waiting.
        It is an upper bound if fewer ranks than group_size are there. It needs no common clock.
    skew_ns: the longest duration less the shortest: how long before the last rank the first one came.
    last_rank: the rank with the shortest duration; null if it is alone.
    hidden_share: of the time of all ranks, what computation on the same GPU covers.
    bus_gb_per_s: algorithm_gb_per_s times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter,
        1 for the others, where n is the group's size (nccl-tests, doc/PERFORMANCE.md). You can compare it with the links' rate for any n.
    ranks: how many ranks have it.
    waiting_ns: the sum over the ranks of what their duration exceeds transfer_ns by.
    exposed_ns: the sum over the ranks of what no computation on the same GPU covers.
    spent_ns: the sum of the durations over the ranks: ranks * transfer_ns + waiting_ns.
    matched: how the ranks' calls were joined: by "seq" (process group and sequence number), by "order" (within step, group and kind, if
        the trace has no sequence numbers), or "alone" (no other rank has it).
    seq: its number in the group.
    algorithm_gb_per_s: size_bytes / transfer_ns.
    algorithm: how the bytes go, if the kernel's name says it: one-shot, two-shot or in-switch.
    link_gb_per_s: the bytes that each rank receives with that algorithm (`link_factor`) in the transfer's time. Compare it with the link's rate.
    """
    return matched(trace).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def bus_factor(ranks: pl.Expr) -> pl.Expr:
    """What a collective's size times this is: the bytes over each rank's link (nccl-tests, doc/PERFORMANCE.md)."""
    others = (ranks.cast(pl.Float64) - 1) / ranks
    return (
        pl.when(pl.col("collective") == "all_reduce").then(2 * others)
        .when(pl.col("collective").is_in(["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"]))
        .then(others)
        .otherwise(1.0)
    )  # fmt: skip


def link_factor(ranks: pl.Expr) -> pl.Expr:
    """What a collective's size times this is: the bytes that a rank receives over its link, by the algorithm where that is known.

    One-shot: the whole buffer of each other rank. In the switch: the sum of one part, and then all parts, which the switch
    sends to every rank. Else as `bus_factor` has it.
    """
    size, reduces = ranks.cast(pl.Float64), pl.col("collective") == "all_reduce"
    return (
        pl.when(reduces & (pl.col("algorithm") == "one-shot")).then(size - 1)
        .when(reduces & (pl.col("algorithm") == "in-switch")).then(1 + 1 / size)
        .otherwise(bus_factor(ranks))
    )  # fmt: skip


@once
def keyed(trace: Trace) -> pl.DataFrame:
    """The rows of `collective_calls` with `matched` and `key`, as in `with_key`."""
    return with_key(collective_calls(trace))


@once
def matched(trace: Trace) -> pl.DataFrame:
    """The rows of `collectives`, as in `operations`."""
    return operations(keyed(trace))


def how_matched(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with `matched`: by what the calls of one operation are told, as in `collectives`."""
    shared = ~pl.col("collective").is_in(POINT_TO_POINT)
    by_seq = pl.col("seq").is_not_null() & shared
    by_order = ~by_seq & pl.col("turn").is_not_null() & shared
    return calls.with_columns(
        matched=pl.when(by_seq).then(pl.lit("seq")).when(by_order).then(pl.lit("order")).otherwise(pl.lit("alone"))
    )


def with_key(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with `matched`, and `key`, the same number for those that are one operation. calls: as in `collective_calls`."""
    calls = how_matched(calls.with_row_index("row"))
    by_seq, by_order = pl.col("matched") == "seq", pl.col("matched") == "order"
    alike = ["group", "group_ranks", "collective", "matched"]
    again = pl.int_range(pl.len()).over("rank", *alike, "seq")  # one number may stand for several that were coalesced
    key = pl.struct(
        *alike,
        seq=pl.when(by_seq).then("seq"),
        turn=pl.when(by_order).then("turn").when(by_seq).then(again),
        step=pl.when(by_order).then("step"),
        row=pl.when(pl.col("matched") == "alone").then("row"),
    )
    return calls.with_columns(key=key.rank("dense"))


def operations(calls: pl.DataFrame) -> pl.DataFrame:
    """The columns of `collectives`, with `key`, and `ts` (ns on the clock of `first_rank`, the first that has it). calls: as `with_key` gives them,
    by rank and time."""
    dur = pl.col("dur_ns")
    found = calls.group_by("key", maintain_order=True).agg(
        pl.col("ts", "step", "group", "group_ranks", "collective", "seq", "matched").first(),
        pl.col("dtype", "size_bytes", "group_size", "algorithm").drop_nulls().first(),
        first_rank=pl.col("rank").first(),
        ranks=pl.col("rank").n_unique(),
        transfer_ns=dur.min(),
        skew_ns=dur.max() - dur.min(),
        last_rank=pl.col("rank").sort_by("dur_ns").first(),
        spent_ns=dur.sum(),
        waiting_ns=dur.sum() - dur.min() * dur.len(),
        exposed_ns=(dur - pl.col("hidden_ns")).sum(),
        hidden_ns=pl.col("hidden_ns").sum(),
    )
    alone = pl.col("ranks") < 2
    rate = pl.when((pl.col("transfer_ns") > 0) & (pl.col("size_bytes") > 0)).then(
        pl.col("size_bytes") / pl.col("transfer_ns")
    )
    return found.with_columns(
        matched=pl.when(alone).then(pl.lit("alone")).otherwise("matched"),
        last_rank=pl.when(~alone).then("last_rank"),
        hidden_share=pl.when(pl.col("spent_ns") > 0).then(pl.col("hidden_ns") / pl.col("spent_ns")),
        algorithm_gb_per_s=rate,
        bus_gb_per_s=rate * bus_factor(pl.coalesce("group_size", "ranks")),
        link_gb_per_s=pl.when(pl.col("algorithm").is_not_null()).then(
            rate * link_factor(pl.coalesce("group_size", "ranks"))
        ),
    ).drop("hidden_ns")
