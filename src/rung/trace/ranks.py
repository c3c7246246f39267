"""Several files of one run, one a rank, as one trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl

from rung.trace.table import Trace
from rung.trace.unread import Unread

NO_RANK = -1  # stands for no rank where tables are joined, because a join has no equal nulls
_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)


def merged(traces: list[Trace], names: list[str], source: str, skipped: list[str]) -> Trace:
    """One trace of these; `rank` says which file an event comes from, where the reader did not say it already.

    names: the files' names, in the order of the traces. skipped: names of files that are no traces.
    meta["files"] has one entry a file: its name, rank, format, devices and facts.
    """
    files_say = [stated(trace) for trace in traces]
    ranks = ranks_of(files_say, names)
    dtype = traces[0].events.schema["rank"]

    def stacked(table: str) -> pl.DataFrame:
        of_rank = [
            getattr(trace, table).with_columns(pl.col("rank").fill_null(pl.lit(rank, dtype=dtype)))
            for trace, rank in zip(traces, ranks, strict=True)
        ]
        return pl.concat(of_rank, rechunk=False)

    unread = Unread()
    for trace in traces:
        unread.more(trace.unread, trace.unread_ns)
    files: list[dict[str, Any]] = [
        {"file": name, "rank": rank, "format": trace.format, "devices": trace.devices, **trace.meta}
        for trace, name, rank in zip(traces, names, ranks, strict=True)
    ]
    for says, rank in zip(files_say, ranks, strict=True):
        if says.rank not in (None, rank):
            unread.count(renumbered(says.rank, rank), 1, 0)
    meta: dict[str, Any] = {"files": files, "ranks": sorted(set(ranks))}
    if skipped:
        unread["file of no known format"] = len(skipped)
        meta["skipped"] = skipped
    formats = list(dict.fromkeys(trace.format for trace in traces))
    return replace(
        traces[0],
        events=stacked("events"),
        source=source,
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="+".join(formats),
        counters=stacked("counters"),
        collectives=stacked("collectives"),
        grids=stacked("grids"),
        meta=meta,
        memory=stacked("memory"),
        curves=stacked("curves"),
    )


def renumbered(says: int | None, rank: int) -> str:
    """What is said of a file that is not shown under the rank that it states."""
    return f"file that states rank {says} at the same time as another, and is shown as rank {rank}"


def named_ranks(events: pl.DataFrame) -> list[int | None]:
    """The ranks of events, ascending; None comes first and stands for those without one."""
    rank = events["rank"]
    if events.height and rank.null_count() == events.height:  # known without looking through them
        return [None]
    return rank.unique().sort().to_list()


def of_rank(rank: int | None) -> pl.Expr:
    """Whether a row is of one of `named_ranks`."""
    return pl.col("rank").is_null() if rank is None else pl.col("rank") == rank


class Stated(NamedTuple):
    """What tells whose a file is. rank: as the file states it; begin, end: of its events, in ns."""

    rank: int | None
    format: str
    begin: int
    end: int


def stated(trace: Trace) -> Stated:
    begin, end = trace.events["ts"].min(), (trace.events["ts"] + trace.events["dur"]).max()
    span = (begin, end) if isinstance(begin, int) and isinstance(end, int) else (0, 0)
    return Stated(stated_rank(trace), trace.format, *span)


def ranks_of(files: Sequence[Stated], names: Sequence[str]) -> list[int]:
    """The rank of each file: what it states, else what its name says, else its place.

    One way for all files, or two ways could give two files the same rank; the same rank twice is only believed
    where the files state it, and one was recorded after the other (a rank may write several files).
    """
    says = [file.rank for file in files]
    if all(rank is not None for rank in says):
        return _apart(files, [int(rank) for rank in says if rank is not None])
    found = [_IN_NAME.search(name) for name in names]
    named = [int(match[1]) if match else None for match in found]
    mixed = [s if s is not None else n for s, n in zip(says, named, strict=True)]
    if all(rank is not None for rank in mixed) and len(set(mixed)) == len(mixed):
        return [int(rank) for rank in mixed if rank is not None]
    return list(range(len(files)))


def _apart(files: Sequence[Stated], stated: list[int]) -> list[int]:
    """The ranks, where two files of one format that state the same rank for the same time are of two processes, as of two jobs whose ranks are
    counted from 0 each: the later file gets the next number that none has."""
    found: list[int] = []
    of: dict[tuple[int, str], list[Stated]] = {}
    free = max(stated, default=-1) + 1
    for file, rank in zip(files, stated, strict=True):
        before = of.setdefault((rank, file.format), [])
        if any(max(file.begin, other.begin) < min(file.end, other.end) for other in before):
            rank, free = free, free + 1
        else:
            before.append(file)
        found.append(rank)
    return found


def stated_rank(trace: Trace) -> int | None:
    """The rank that a file says it is of."""
    facts = trace.meta.get("distributedInfo")
    rank = facts.get("rank") if isinstance(facts, dict) else trace.meta.get("rank")
    valid = isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 2**31
    return rank if valid else None
