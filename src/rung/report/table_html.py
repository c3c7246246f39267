"""A table as HTML: what is shown as on the terminal, and beside it the value itself for sorting and for CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rung.report import units
from rung.report.svg import escaped
from rung.report.tables import NAMES, cell_text, heading

if TYPE_CHECKING:
    import polars as pl
    from markupsafe import Markup

MOST = 100  # rows; the whole table is for `--out`


@dataclass(frozen=True)
class HtmlTable:
    """name: of the analysis, and of the CSV; question: what it answers; rows: how many the table has, of which at most MOST are shown."""

    name: str
    question: str
    html: Markup
    rows: int

    @property
    def more(self) -> int:
        return max(0, self.rows - MOST)


def html_table(name: str, question: str, frame: pl.DataFrame, most: int = MOST) -> HtmlTable:
    """The first rows of a table. Columns in which nothing is known, or nothing would be seen, are left out."""
    from markupsafe import Markup

    shown = frame.head(most)
    columns = [column for column in frame.columns if _says_something(column, shown[column].to_list())]
    numbers = {column: frame.schema[column].is_numeric() for column in columns}
    head = "".join(
        f'<th scope="col" data-name="{escaped(column)}"{" class=number" if numbers[column] else ""}>{escaped(heading(column, frame.columns))}</th>'
        for column in columns
    )
    body = "".join(
        f"<tr>{''.join(_cell(column, value, numbers[column]) for column, value in zip(columns, row, strict=True))}</tr>\n"
        for row in shown.select(columns).iter_rows()
    )
    text = f'<table class="data" data-table="{escaped(name)}"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
    return HtmlTable(name, question, Markup(text), frame.height)


def _cell(column: str, value: Any, number: bool) -> str:
    shown = "" if value is None else cell_text(column, value)
    whole = _whole(value)
    told = f' data-v="{escaped(whole)}"' if whole != shown else ""
    css = " class=number" if number else " class=kernel-name" if column in NAMES else ""
    return f"<td{css}{told}>{escaped(shown)}</td>"


def _says_something(column: str, values: Sequence[Any]) -> bool:
    return any(value is not None and cell_text(column, value) for value in values)


def _whole(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else units.clean(value)
