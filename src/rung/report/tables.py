"""Any table on the terminal: what a column holds is told by its name, and it fits the width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rung.analysis.kernel_names import readable
from rung.report import breakdowns, units

if TYPE_CHECKING:
    import polars as pl

GAP = 2
# Characters that a text keeps: while there are statistics that can go, while other columns on its right can, in any case.
EASY, TIGHT, LEAST = 56, 28, 12
_RATES = {"tflop_per_s": "TFLOP/s", "tb_per_s": "TB/s", "gb_per_s": "GB/s"}
_STATISTICS = ("median_ns", "min_ns", "max_ns", "std_ns")


def table_lines(frame: pl.DataFrame, *, width: int = 100, top: int | None = None, raw: bool = False) -> list[str]:
    """A heading and one line a row, the first `top` of them; texts are cut in the middle, columns left out at the right.

    Units follow the names of the columns: _ns, _bytes, share; a heading has a line for each of its words where it is
    wider than its column. raw: kinds of work by the names that a query asks for, not in the words of every report.
    """
    shown = frame if top is None else frame.head(top)
    columns = [(name, *_cells(name, shown, raw)) for name in shown.columns]
    columns = [column for column in columns if any(cell for cell in column[2]) or frame.is_empty()]
    heads = [heading(name, frame.columns) for name, _, _ in columns]
    widths = [
        max([*map(len, head.split()), *map(len, cells)]) for head, (_, _, cells) in zip(heads, columns, strict=True)
    ]
    texts = [i for i, (_, text, _) in enumerate(columns) if text]
    kept = len(columns)
    first_text = min(texts, default=0)
    for least, may_go in ((EASY, _STATISTICS), (TIGHT, None), (LEAST, ())):
        _shrink(widths, [i for i in texts if i < kept], kept, width, least)
        while kept - 1 > first_text and _total(widths[:kept]) > width:
            if may_go is not None and columns[kept - 1][0] not in may_go:
                break
            kept -= 1
    while kept > 1 and _total(widths[:kept]) > width:
        kept -= 1
    stacked = [textwrap.wrap(head, width) or [""] for head, width in zip(heads[:kept], widths, strict=False)]
    tall = max(map(len, stacked), default=0)
    lifted = [[""] * (tall - len(words)) + words for words in stacked]
    lines = []
    for row in [*zip(*lifted, strict=True), *zip(*(cells for _, _, cells in columns[:kept]), strict=True)]:
        cells = [shortened(cell, widths[i]) for i, cell in enumerate(row)]
        aligned = [c.ljust(widths[i]) if columns[i][1] else c.rjust(widths[i]) for i, c in enumerate(cells)]
        lines.append((" " * GAP).join(aligned).rstrip())
    if kept < len(columns):
        lines += textwrap.wrap(f"(no room for: {', '.join(heads[kept:])})", width)
    if shown.height < frame.height:
        lines.append(f"... {units.count(frame.height - shown.height)} more rows")
    return lines if not frame.is_empty() else [*lines, "(no rows)"]


def catalogue_lines(tables: pl.DataFrame, width: int) -> list[str]:
    """A table's name and its columns, for each row of (name, columns)."""
    margin = max(map(len, tables["table"].to_list())) + GAP
    return [
        line
        for name, columns in tables.iter_rows()
        for line in textwrap.wrap(f"{name:<{margin}}{columns}", width, subsequent_indent=" " * margin)
    ]


def heading(name: str, names: list[str]) -> str:
    """What a column is called: without its unit, which the cells have."""
    plain = name.removesuffix("_ns").removesuffix("_bytes")
    if plain != name and plain in names:  # "unlinked" counts what "unlinked_ns" times
        plain += "_time" if name.endswith("_ns") else "_size"
    for rate, unit in _RATES.items():
        plain = plain.replace(rate, unit)
    return units.clean(plain).replace("_", " ")


def shortened(text: str, width: int) -> str:
    """The text in so many characters: of a path its end, else the beginning and the end, which say most of a kernel."""
    if len(text) <= width:
        return text
    if width > 3 and (" / " in text or ".py(" in text):
        return f"...{text[len(text) - width + 3 :]}"
    tail = max(0, (width - 3) // 3)
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}" if width > 3 else text[:width]


def _shrink(widths: list[int], texts: list[int], kept: int, width: int, least: int) -> None:
    """Narrows the widest of the texts, none below `least`, until the kept columns fit."""
    while texts and _total(widths[:kept]) > width:
        wide = max(texts, key=lambda i: widths[i])
        if widths[wide] <= least:
            return
        widths[wide] -= 1


def _total(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _cells(name: str, frame: pl.DataFrame, raw: bool) -> tuple[bool, list[str]]:
    """Whether the column is text, and what is shown of each value."""
    values = frame[name].to_list()
    text = not frame.schema[name].is_numeric()
    of = "" if raw and name in KINDS else name
    return text, ["" if value is None else cell_text(of, value) for value in values]


def cell_text(name: str, value: Any) -> str:
    """What is shown of a value in the column of this name."""
    if isinstance(value, bool):
        return "yes" if value else "no" if name == "met" else ""
    if isinstance(value, str) and name in KINDS and value != "other":  # which is of kernels or of operators
        return units.one_line(breakdowns.kind(value))
    if isinstance(value, str):
        return units.one_line(readable(value) if name in NAMES else value)
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text("", item) for item in value)
    if name.endswith("_ns"):
        return units.duration(value)
    if name.endswith("_bytes"):
        return units.data_size(value)
    if name.endswith("share"):
        return (f"{value:.1%}" if value else "") if units.number(value) is not None else units.NONE
    if isinstance(value, float) and units.number(value) is None:
        return units.NONE
    if isinstance(value, float) and not value.is_integer():
        return units.digits(value)
    if isinstance(value, float):
        value = int(value)
    return f"{value:,}" if isinstance(value, int) and name not in _NUMBERS else str(value)


KINDS = ("category", "family")
NAMES = ("name", "kernel", "largest", "next")
_NUMBERS = ("device", "stream", "rank", "step", "pid", "tid", "correlation", "ts", "end")  # names, not amounts


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose first row is its head, with its cells below each other: it is read in a terminal, too."""
    widths = [max(3, *(len(row[k]) for row in rows)) for k in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))} |" for row in rows]
    return [lines[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *lines[1:]]
