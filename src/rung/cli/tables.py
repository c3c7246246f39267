"""How commands give out tables: on the terminal, as CSV, as JSON, as a folder of files."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import at_least, say, size
from rung.cli.output import write_data

if TYPE_CHECKING:
    import polars as pl

TOP = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top", type=at_least(0), metavar="N", help=f"rows to show per table; 0 shows all (default: {TOP})"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the table as CSV with all rows; - writes to stdout"
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    """--max-bytes, of every command that reads traces."""
    parser.add_argument(
        "--max-bytes", type=size, metavar="SIZE",
        help="refuse a file that is larger than this when decompressed, as in 500M or 16G (default: 4G)",
    )  # fmt: skip


def add_captures(parser: argparse.ArgumentParser, flag: str = "--capture", of: str = "the trace") -> None:
    """--capture, of commands that read traces whose kernels may be replayed by graphs."""
    parser.add_argument(
        flag, type=Path, action="append", default=[], metavar="FILE",
        help=f"trace of the phase in which the CUDA or HIP graphs of {of} were captured, which names the operators of replayed kernels; may be given again",
    )  # fmt: skip


def shown(table: pl.DataFrame, top: int | None, columns: int | None = None, *, raw: bool = False) -> str:
    """The table for a terminal. columns: its width (default: that of this one); raw: as in `table_lines`."""
    from rung.report.tables import table_lines

    rows = TOP if top is None else (top or None)
    return "\n".join(table_lines(table, width=columns or width(), top=rows, raw=raw))


def blocks(found: Mapping[str, pl.DataFrame], top: int | None) -> str:
    """The tables of analyses by their names, each below its question."""
    from rung.analysis.analyses import ANALYSES

    return "\n\n".join(
        f"{name}: {ANALYSES[name].question}\n{_block(name, table, top)}" for name, table in found.items()
    )


def _block(name: str, table: pl.DataFrame, top: int | None) -> str:
    """A table, but findings, which are texts, one below the other."""
    if name != "findings":
        return shown(table, top)
    from rung.records.analyze import Finding
    from rung.records.record import record_of
    from rung.report.findings import findings_blocks

    rows = record_of(list[Finding], table.head(top or table.height).to_dicts())
    return "\n".join(findings_blocks(rows, width()))


def width() -> int:
    """Of the terminal, or 100 where there is none; at least 60."""
    return max(60, shutil.get_terminal_size((100, 24)).columns)


def write_csv(table: pl.DataFrame, path: Path) -> None:
    """The whole table as CSV, into a file or to stdout."""
    if str(path) == "-":
        write_data(as_csv(table))
        return
    from rung.trace.output import whole

    with whole(path) as file:
        _flat(table).write_csv(file)


def write_all(trace: Any, steps: int, folder: Path, kind: str, xlsx: bool = False) -> None:
    """Every analysis that has an answer into a file of the folder, `kernels.csv` or `kernels.parquet`; each is written whole. xlsx: also
    all of them into `tables.xlsx`."""
    from rung.analysis.analyses import ANALYSES, table
    from rung.trace.output import whole

    found = {name: table(name, trace, steps=steps) for name in ANALYSES}
    found = {name: frame for name, frame in found.items() if not frame.is_empty()}
    for name, frame in found.items():
        with whole(folder / f"{name}.{kind}") as file:
            frame.write_parquet(file) if kind == "parquet" else _flat(frame).write_csv(file)
    say(f"tables: {folder} ({len(found)} of {len(ANALYSES)} as {kind}; the others have no rows)")
    if xlsx:
        from rung.report.workbook import write_workbook

        with whole(folder / "tables.xlsx") as file:
            write_workbook({name: (ANALYSES[name].question, frame) for name, frame in found.items()}, file)
        say(f"workbook: {folder / 'tables.xlsx'}")


def as_csv(table: pl.DataFrame) -> str:
    return _flat(table).write_csv()


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Lists of a column as text: CSV has none."""
    import polars as pl

    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    return table.with_columns(pl.col(name).cast(pl.List(pl.String)).list.join(", ") for name in nested)
