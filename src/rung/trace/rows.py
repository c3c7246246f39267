"""From a reader's rows, with a start and an end, to the event table; what cannot be in it is counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import polars as pl

from rung.trace.table import CODED, COUNTERS, SCHEMA
from rung.trace.unread import Unread

NO_TIME = "no readable start or duration"
NEGATIVE = "negative duration"
ROUNDED = "time rounded by a spreadsheet"
# Correlation ids count from one in every process: where a file holds several, this keeps them apart.
PROCESS_SHIFT = 48


def events(rows: pl.DataFrame, unread: Unread) -> pl.DataFrame:
    """`rows` as events: they have `start` and `end` in ns, and any of the other columns of SCHEMA.

    Rows without a time or with an end before the start are left out and counted in `unread`.
    """
    readable = rows.filter(pl.col("start").is_not_null() & pl.col("end").is_not_null())
    unread.count(NO_TIME, rows.height - readable.height)
    # Compared, not subtracted: the difference of two int64 may not be one.
    backward = pl.col("end") < pl.col("start")
    forward = readable.filter(~backward)
    if lost := readable.height - forward.height:
        wide = pl.col("start").cast(pl.Int128) - pl.col("end").cast(pl.Int128)
        unread.count(NEGATIVE, lost, readable.filter(backward).select(wide.sum()).item())
    made = forward.with_columns(ts=pl.col("start"), dur=pl.col("end") - pl.col("start"))
    fitting = made.filter(pl.col("dur") >= 0)
    unread.count(NO_TIME, made.height - fitting.height)
    return conformed(fitting, SCHEMA)


def assemble(
    frames: Sequence[pl.DataFrame], unread: Unread, *, rank: int | None = None, shift: int = 0
) -> pl.DataFrame:
    """The events of all `frames`, one of each kind.

    shift: the position of the process in its file, put above its correlation ids; 0 leaves them as they are.
    """
    made = pl.concat([events(frame, unread) for frame in frames])
    if rank is not None:
        made = made.with_columns(rank=pl.lit(rank, dtype=SCHEMA["rank"]))
    return made.with_columns(pl.col("correlation") + (shift << PROCESS_SHIFT)) if shift else made


def counted(unread: Unread, reason: str, number: int | None) -> None:
    if number:
        unread[reason] += int(number)


def conformed(frame: pl.DataFrame, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """`frame` with exactly the columns of `schema`; absent ones are null."""
    columns = {name: pl.col(name) if name in frame.columns else pl.lit(None) for name in schema}
    # polars codes texts alone: an id that is a number becomes one first.
    columns |= {name: columns[name].cast(pl.String) for name, dtype in schema.items() if dtype == CODED}
    return frame.select(columns[name].cast(dtype, strict=False).alias(name) for name, dtype in schema.items())


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts 9 before 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text)]


def stacked(frames: Iterable[pl.DataFrame], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """All `frames` below each other; an empty table of `schema` when there are none."""
    kept = [frame for frame in frames if frame.height]
    return pl.concat(kept) if kept else pl.DataFrame(schema=schema)


def counters(rows: pl.DataFrame, unread: Unread) -> pl.DataFrame:
    """`rows` as counter values; those without a number are left out and counted."""
    made = conformed(rows, COUNTERS)
    readable = made.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())
    unread.count("counter value that is not a number", made.height - readable.height)
    return readable
