"""Tables as sheets of one workbook (.xlsx). Texts stay texts: a name that begins with "=" is no formula."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from rung.errors import UsageError
from rung.report import units

if TYPE_CHECKING:
    import polars as pl

NEEDED = "xlsx files need the package xlsxwriter: pip install 'rung[xlsx]', or leave --xlsx out for CSV or Parquet."
_MOST_ROWS = 1_048_575  # of a sheet, below its heading
_LONGEST = 32_767  # characters of a cell
_LONGEST_NAME = 31
_WIDEST = 60  # characters shown of a column


def need_xlsxwriter() -> None:
    """Raises UsageError where it is not installed."""
    if importlib.util.find_spec("xlsxwriter") is None:
        raise UsageError(NEEDED)


def write_workbook(tables: Mapping[str, tuple[str, pl.DataFrame]], file: BinaryIO) -> None:
    """A sheet a table, and a first one that lists them. tables: by name, with the question that each answers. Values as in the tables:
    nanoseconds, bytes, shares; lists as text. A sheet holds 1,048,575 rows: the list says where some are left out."""
    import xlsxwriter

    book = xlsxwriter.Workbook(file, {"in_memory": True, "nan_inf_to_errors": False})
    bold = book.add_format({"bold": True})
    contents = book.add_worksheet("tables")
    contents.write_row(0, 0, ["table", "rows", "question"], bold)
    contents.set_column(0, 0, 24)
    contents.set_column(2, 2, 100)
    for place, (name, (question, frame)) in enumerate(tables.items(), 1):
        shown = frame.head(_MOST_ROWS)
        left = frame.height - shown.height
        contents.write_string(place, 0, name)
        contents.write_number(place, 1, frame.height)
        contents.write_string(place, 2, f"{question} (the first {shown.height} rows)" if left else question)
        sheet = book.add_worksheet(name[:_LONGEST_NAME])
        for column, title in enumerate(shown.columns):
            sheet.write_string(0, column, title, bold)
            widest = 0
            for row, value in enumerate(shown[title].to_list(), 1):
                widest = max(widest, _write(sheet, row, column, value))
            sheet.set_column(column, column, min(_WIDEST, max(len(title), widest) + 2))
        sheet.freeze_panes(1, 0)
        sheet.autofilter(0, 0, shown.height, max(0, shown.width - 1))
    book.close()


def _write(sheet: Any, row: int, column: int, value: Any) -> int:
    """One cell; how many characters it has."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return 0
    if isinstance(value, bool):
        sheet.write_boolean(row, column, value)
        return 5
    if isinstance(value, (int, float)):
        sheet.write_number(row, column, value)
        return len(f"{value:.6g}")
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    sheet.write_string(row, column, units.clean(text)[:_LONGEST])
    return len(text)
