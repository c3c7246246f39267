"""Puts frames of one kind each together as the event table, and counts the rows that no event can be made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl

from rung.trace.table import SCHEMA

# Correlation ids count from one in every process: where a file holds several, this keeps them apart.
PROCESS_SHIFT = 48


def counted(unread: Counter[str], reason: str, number: int | None) -> None:
    if number:
        unread[reason] += int(number)


def assemble(
    frames: Sequence[pl.DataFrame], unread: Counter[str], *, rank: int | None = None, shift: int = 0
) -> pl.DataFrame:
    """The event table of frames with `start`, `end` and any columns of SCHEMA; what they lack is null.

    shift: the position of the process in its file, put above its correlation ids; 0 leaves them as they are.
    """
    return pl.concat([_events(frame, unread, rank, shift) for frame in frames])


def _events(frame: pl.DataFrame, unread: Counter[str], rank: int | None, shift: int) -> pl.DataFrame:
    # Of two times of opposite sign the difference may not fit: those are no times of any clock.
    near = pl.col("start").is_between(-(2**62), 2**62) & pl.col("end").is_between(-(2**62), 2**62)
    timed = frame.filter(near.fill_null(False))
    counted(unread, "no readable start or duration", frame.height - timed.height)
    whole = timed.filter(pl.col("end") >= pl.col("start"))
    counted(unread, "negative duration", timed.height - whole.height)
    columns = {"ts": pl.col("start"), "dur": pl.col("end") - pl.col("start"), "rank": pl.lit(rank)}
    for name in SCHEMA:
        if name not in columns:
            columns[name] = pl.col(name) if name in whole.columns else pl.lit(None)
    if shift:
        columns["correlation"] += shift << PROCESS_SHIFT
    return whole.select(columns[name].cast(dtype, strict=False).alias(name) for name, dtype in SCHEMA.items())
