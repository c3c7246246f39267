"""How far apart the clocks of ranks are, as they measured it themselves: `clocks.json` beside their traces."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rung.errors import InputError
from rung.files import read_text
from rung.trace.table import Trace

NAME = "clocks.json"
Time = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Compared(msgspec.Struct, kw_only=True):
    """at_ns: when, by the rank's own clock, ns since 1970; offset_ns: how far that is ahead of the reference's; error_ns: by how much
    that may be off at most."""

    at_ns: Time
    offset_ns: Time
    error_ns: Time


class OfRank(msgspec.Struct, kw_only=True):
    """seen: before and after the recording."""

    rank: int
    host: str
    seen: Annotated[list[Compared], msgspec.Meta(min_length=1, max_length=1000)]

    def ahead(self, at_ns: int) -> int:
        """How far its clock was ahead at a time of its own, on the line through what was seen first and last."""
        first, last = self.seen[0], self.seen[-1]
        if last.at_ns == first.at_ns:
            return first.offset_ns
        share = (at_ns - first.at_ns) / (last.at_ns - first.at_ns)
        return first.offset_ns + round(share * (last.offset_ns - first.offset_ns))


class Clocks(msgspec.Struct, kw_only=True, tag_field="kind", tag="clocks"):
    """reference: the rank whose clock the others are compared with."""

    schema: int = 1
    reference: int = 0
    ranks: list[OfRank]


def with_clocks(trace: Trace, folder: Path) -> Trace:
    """The trace of a file or of ranks, with what the folder says of their clocks: `meta["clocks"]` has for a rank what to take from its
    times to have them on the reference's clock, and by how much that may be off. Only differences between ranks mean something, as traces
    count from a time of their own.

    Raises InputError where the file is damaged.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        return trace
    try:
        clocks = msgspec.json.decode(read_text(path), type=Clocks)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise InputError(
            f"{path} is damaged ({error}): remove it, and ranks are compared by their collectives."
        ) from None
    of_rank = {one.rank: one for one in clocks.ranks}
    found = {rank: _to_take(trace, rank, base, of_rank[rank]) for rank, base in _bases(trace) if rank in of_rank}
    return replace(trace, meta=trace.meta | {"clocks": found}) if found else trace


def _to_take(trace: Trace, rank: int, base: int, clock: OfRank) -> tuple[int, int]:
    own = trace.events.filter(rank=rank) if trace.events["rank"].null_count() < trace.events.height else trace.events
    begin, end = own["ts"].min(), own["ts"].max()
    middle = begin + (end - begin) // 2 if isinstance(begin, int) and isinstance(end, int) else 0
    return clock.ahead(base + middle) - base, max(one.error_ns for one in clock.seen)


def _bases(trace: Trace) -> Iterable[tuple[int, int]]:
    """Each rank with the time from which its file counts, ns since 1970."""
    from rung.trace.ranks import stated_rank

    files: Any = trace.meta.get("files")
    for facts in files if isinstance(files, list) else [trace.meta]:
        rank = facts.get("rank") if isinstance(files, list) else stated_rank(trace)
        base = facts.get("baseTimeNanoseconds", 0)
        if isinstance(rank, int) and isinstance(base, int):
            yield rank, base
