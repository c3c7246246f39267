"""How commands give out tables: on the terminal, as CSV, as JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rung.cli.common import at_least

if TYPE_CHECKING:
    import polars as pl

TOP = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top", type=at_least(0), metavar="N", help=f"rows of a table to show (default: {TOP}; 0: all)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the one table as CSV, all rows (-: to stdout)")


def shown(table: pl.DataFrame, top: int | None) -> str:
    from rung.report.tables import table_lines

    rows = TOP if top is None else (top or None)
    return "\n".join(table_lines(table, width=width(), top=rows))


def width() -> int:
    """Of the terminal, or 100 where there is none; at least 60."""
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def write_csv(table: pl.DataFrame, path: Path) -> None:
    """The whole table; lists of a column as text."""
    import polars as pl

    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    flat = table.with_columns(pl.col(name).cast(pl.List(pl.String)).list.join(", ") for name in nested)
    if str(path) == "-":
        sys.stdout.write(flat.write_csv())
    else:
        from rung.trace.output import whole

        with whole(path) as file:
            flat.write_csv(file)
