"""Do the ranks arrive together, and is a rank's trace missing?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from rung.analysis.collective_calls import JOINING
from rung.analysis.collectives import keyed, matched
from rung.trace.ranks import named_ranks
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "recorded": pl.Boolean(),
    "collectives": pl.Int64(),
    "last": pl.Int64(),
    "latest_ns": pl.Int64(),
    "waited_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "clock_offset_ns": pl.Int64(),
}


def skew(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a rank, also those without a trace.

    recorded: false for a rank without a trace, whose figures are null.
    collectives: how many it shares with other ranks.
    last: in how many of them it came last.
    latest_ns: the longest that the others waited for it in one of them.
    waited_ns: how long it waited for others, per step.
    exposed_ns: its communication that no computation covers, per step.
    clock_offset_ns: how far its clock is ahead of the first rank's, the median over collectives that all ranks leave together; where
        there is none, what the ranks' messages said; null if that is not known.
    """
    calls = keyed(trace).with_columns(pl.col("rank").fill_null(pl.lit(stated_rank(trace), dtype=pl.Int32)))
    found = arrivals(calls, matched(trace))
    return by_rank(found, recorded_ranks(trace), missing_ranks(trace), clock_offsets(trace), steps)


def arrivals(calls: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """What each rank's calls say, one row a rank: the columns of `skew`, of the whole recording. calls: as `with_key` gives them."""
    shared = calls.join(operations.select("key", "ranks", "transfer_ns", "last_rank", "skew_ns"), on="key")
    together = pl.col("ranks") > 1
    last = pl.col("rank") == pl.col("last_rank")
    return shared.group_by("rank").agg(
        collectives=together.sum(),
        last=(together & last).sum(),
        latest_ns=pl.when(last).then("skew_ns").max().fill_null(0),
        waited_ns=(pl.col("dur_ns") - pl.col("transfer_ns")).sum(),
        exposed_ns=(pl.col("dur_ns") - pl.col("hidden_ns")).sum(),
    )


def by_rank(
    arrivals: pl.DataFrame, recorded: list[int], missing: list[int], offsets: dict[int, int], steps: int
) -> pl.DataFrame:
    """The table of `skew`. arrivals: of each rank one row or several, each of some of its collectives. recorded, missing: ranks."""
    found = arrivals.group_by("rank").agg(
        pl.col("collectives", "last").sum(),
        pl.col("latest_ns").max(),
        (pl.col("waited_ns", "exposed_ns").sum() / steps).round(),
    )
    table = pl.DataFrame({"rank": sorted({*recorded, *missing})}, schema={"rank": pl.Int32()})
    return (
        table.join(found, on="rank", how="left", nulls_equal=True)
        .with_columns(
            recorded=pl.col("rank").is_in(recorded, nulls_equal=True),
            clock_offset_ns=pl.col("rank").replace_strict(offsets, default=None, return_dtype=pl.Int64),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
        .sort("rank")
    )


def clock_offsets(trace: Trace) -> dict[int, int]:
    """Nanoseconds to take from the times of a rank to have them on the clock of the first one.

    All ranks leave an all-reduce and its like together, but for microseconds; so the offset is the median difference of
    their ends. Where ranks compared their clocks by messages, it lies within the bounds that these give, and ranks that share no such
    collective with the first one have it from the messages. Others are not there.
    """
    return known_offsets(offsets(keyed(trace)), trace.meta.get("clocks", {}))


def known_offsets(by_ends: dict[int, int], by_messages: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """by_ends: of ranks that leave collectives together. On GPUs that holds to within microseconds, on CPUs less. by_messages: as
    `meta["clocks"]` has it: less precise, and never off by more than it says."""
    first = min([*by_ends, *([] if by_ends else by_messages)], default=None)
    if first is None or first not in by_messages:
        return by_ends
    origin, uncertain = by_messages[first]
    found = dict(by_ends)
    for rank, (to_take, error) in by_messages.items():
        said, most = to_take - origin, error + uncertain
        found[rank] = min(max(found.get(rank, said), said - most), said + most) if rank != first else 0
    return dict(sorted(found.items()))


def joining(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls by which clocks are compared. calls: with `matched`, as `how_matched` gives it."""
    return calls.filter(pl.col("collective").is_in(JOINING), pl.col("matched") != "alone")


def offsets(calls: pl.DataFrame) -> dict[int, int]:
    """The same, of calls as `with_key` gives them."""
    ends = joining(calls)
    if ends.is_empty() or ends["rank"].null_count():
        return {}
    first = int(ends["rank"].to_numpy().min())
    pairs = ends.join(ends.filter(pl.col("rank") == first).select("key", reference="end"), on="key")
    found = pairs.group_by("rank").agg(offset=(pl.col("end") - pl.col("reference")).median().round().cast(pl.Int64))
    return dict(found.sort("rank").iter_rows())


def missing_ranks(trace: Trace) -> list[int]:
    """The ranks of the run whose traces are not there, as far as the files say how many there were."""
    return sorted(set(range(world_size(trace))) - set(recorded_ranks(trace)))


def recorded_ranks(trace: Trace) -> list[int]:
    """The ranks that the events name, else the one that the file states."""
    named = [rank for rank in named_ranks(trace.events) if rank is not None]
    stated = stated_rank(trace)
    return named or ([] if stated is None else [stated])


def stated_rank(trace: Trace) -> int | None:
    """The rank that a single file says it was recorded on."""
    rank = _infos(trace)[0].get("rank") if len(_infos(trace)) == 1 else None
    return rank if isinstance(rank, int) and 0 <= rank < 2**31 else None


def world_size(trace: Trace) -> int:
    """How many ranks the run had, as the files state it; 0 where none does, or where it is beyond belief."""
    sizes = [info.get("world_size") for info in _infos(trace)]
    return max((size for size in sizes if isinstance(size, int) and size <= 1_000_000), default=0)


def _infos(trace: Trace) -> list[dict[str, Any]]:
    files: list[Any] = trace.meta.get("files") or [trace.meta]
    infos = [facts.get("distributedInfo") for facts in files if isinstance(facts, dict)]
    return [info for info in infos if isinstance(info, dict)]
