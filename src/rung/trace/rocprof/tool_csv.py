"""A profiler's CSV as a table of strings with its columns named in one way; what is cut off or damaged is told."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import polars as pl

from rung.errors import InputError

CUT = "row cut off at the end of the file"
DAMAGED = "row with an unclosed quote"
_BOM = b"\xef\xbb\xbf"
_WHY = 120  # letters of an error of the parser
_SCIENTIFIC = r"^\d+(\.\d+)?[eE]\+?\d+$"
_FRACTION = r"^(\d+)\.(\d)\d*$"


class Table(NamedTuple):
    frame: pl.DataFrame  # every column a string, named as `plain` names it
    titles: dict[str, str]  # the column's name in `frame` → as written in the file
    lost: dict[str, int]  # rows that are not in `frame`, by reason


def plain(title: str) -> str:
    """One spelling for the titles of all versions: `Kernel-Name`, `gpu-id`, `LDS_Block_Size` in lower case and `_`."""
    return title.strip().strip('"').strip().lower().replace("-", "_").replace(" ", "_")


def titles(head: bytes) -> list[str]:
    """The column titles in the first line of `head`; empty when that is no line of text."""
    line = head.removeprefix(_BOM).lstrip().split(b"\n", 1)[0]
    if b"\0" in line or line[:1] in (b"{", b"["):
        return []
    return _cells(line)


def table(data: bytes, path: Path, partial: bool = False, wanted: Collection[str] = ()) -> Table:
    """The rows of a CSV, and of its columns the `wanted` ones, or all.

    Raises InputError when it is cut off or damaged, unless `partial`: then what is whole is read.
    """
    data = data.removeprefix(_BOM).lstrip()
    lost: dict[str, int] = {}
    header = titles(data)
    # A kernel's name or a marker may hold commas, doubled quotes or a line's end, so quotes always come in pairs.
    if data.count(b'"') % 2:
        if not partial:
            raise _damaged(path, "a quote is not closed")
        data, lost = _with_whole_quotes(data)
    last = data[data.rfind(b"\n") + 1 :]
    if last.strip() and b"\n" in data and _fields(last) < len(header):
        if not partial:
            raise _damaged(path, "its last line stops in the middle")
        data = data[: -len(last)]
        lost[CUT] = lost.get(CUT, 0) + 1
    try:
        frame = pl.read_csv(
            data,
            columns=[place for place, title in enumerate(header) if plain(title) in wanted] or None,
            infer_schema=False,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
        )
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise _damaged(path, str(error).split("\n")[0][:_WHY]) from None  # it may hold a whole row of the file
    read = [title.strip() for title in header if not wanted or plain(title) in wanted]
    if len(read) != len(frame.columns):
        raise _damaged(path, "its first line is not a whole line of titles")
    names: dict[str, str] = {}
    written: dict[str, str] = {}
    for column, title in zip(frame.columns, read, strict=True):
        names.setdefault(plain(title), column)
        written.setdefault(plain(title), title)
    if twice := len(frame.columns) - len(names):
        lost["column whose title occurs twice"] = twice
    return Table(
        frame.select(pl.col(column).fill_null("").alias(name) for name, column in names.items()), written, lost
    )


def _with_whole_quotes(data: bytes) -> tuple[bytes, dict[str, int]]:
    lines = data.splitlines(keepends=True)
    whole = [line for line in lines if line.count(b'"') % 2 == 0]
    cut = 1 if lines and lines[-1].count(b'"') % 2 else 0
    lost = {CUT: cut, DAMAGED: len(lines) - len(whole) - cut}
    return b"".join(whole), {reason: count for reason, count in lost.items() if count}


def _fields(line: bytes) -> int:
    return len(_cells(line))


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "replace").replace("\r", "")]), [])
    except csv.Error:
        return []


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is a cut-off or damaged CSV ({why}): record it again, or read what is whole with --partial."
    )


def integer(column: str) -> pl.Expr:
    """A column of strings as int64. A fraction of a nanosecond is rounded; what is no number is null."""
    text = pl.col(column).str.strip_chars()
    exact = text.cast(pl.Int64, strict=False)
    # Means over several passes have a fraction; a float64 could not hold the digits before it. Numbers as 1.6E+14,
    # which a spreadsheet rounded, are none.
    up = text.str.extract(_FRACTION, 2).cast(pl.Int64, strict=False) >= 5
    rounded = text.str.extract(_FRACTION, 1).cast(pl.Int64, strict=False) + up.cast(pl.Int64)
    return pl.coalesce(exact, rounded)


def numbered(frame: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """`frame` with these columns, as far as it has them, as int64; quick where every cell is a plain number."""
    made = []
    for column in columns:
        if column in frame.columns:
            quick = frame[column].cast(pl.Int64, strict=False)
            made.append(frame.select(integer(column)).to_series() if quick.null_count() else quick)
    return frame.with_columns(made)


def without_rounded(frame: pl.DataFrame, columns: list[str]) -> tuple[pl.DataFrame, int]:
    """`frame` less the rows whose times a spreadsheet has rounded (1.62068E+14), and how many those are."""
    rounded = pl.any_horizontal(pl.col(column).str.strip_chars().str.contains(_SCIENTIFIC) for column in columns)
    kept = frame.filter(~rounded)
    return kept, frame.height - kept.height
