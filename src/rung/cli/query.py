"""`rung query`: parse, call, render."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rung.cli import tables
from rung.cli.common import add_command, at_least, for_tables, opened, seconds, size
from rung.cli.guard import guarded
from rung.cli.output import write_data
from rung.errors import UsageError

EXAMPLE = """\
example, a recorded training step of an H200:
  $ rung query rank0.json.gz "select op, count, time_ns from ops where category = 'gemm'"
  op         count     time
  aten::mm      66  4.33 ms
  aten::bmm     18   585 µs

more:
  rung query trace.json.gz                     the tables and their columns
  rung query trace.json.gz "select name, count(*) n from events where kind = 'kernel' group by name"
  rung query trace.json.gz "select * from ops where category = 'gemm'" --csv gemms.csv

The tables are `events` and every analysis that `rung analyze --show list` prints. The SQL is that
of polars. Rung shows columns that end in _ns as times, in _bytes as sizes, in share as percentages.
A query reads no file but the trace.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "query", help_text, EXAMPLE, run)
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help="a trace, a database, or a folder of them")
    parser.add_argument("sql", nargs="?", metavar="SQL", help="a SELECT statement (default: list the tables)")
    tables.add_options(parser)
    parser.add_argument(
        "--steps", type=at_least(1), metavar="N", help="number of recorded steps (default: from the trace)"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="SECONDS", help="stop the query after this time (default: 60)"
    )
    parser.add_argument(
        "--memory", type=size, default=size("4G"), metavar="SIZE",
        help="stop the query if it needs more memory than this, without the trace's tables (default: 4G)",
    )  # fmt: skip
    tables.add_captures(parser)
    tables.add_limit(parser)


def run(parsed: argparse.Namespace) -> int:
    if not parsed.path:
        raise UsageError('give a trace and a question, as in `rung query trace.json.gz "select * from kernels"`.')
    if parsed.csv and parsed.json:
        raise UsageError("give one of --csv and --json.")
    for_tables()
    wanted = {
        "path": str(parsed.path),
        "sql": parsed.sql,
        "steps": parsed.steps,
        "captures": [str(path) for path in parsed.capture],
        "max_bytes": parsed.max_bytes,
        "csv": str(parsed.csv) if parsed.csv else None,
        "as_json": parsed.json,
        "top": parsed.top,
        "width": tables.width(),
    }
    limits = {"timeout": parsed.timeout, "memory": parsed.memory}
    for text in guarded("rung.cli.query:answer", wanted, what="the query", **limits):
        (write_data if parsed.csv else sys.stdout.write)(text)
    return 0


def answer(
    limited: Callable[[], AbstractContextManager[None]],
    *,
    path: str,
    sql: str | None,
    steps: int | None,
    captures: list[str],
    max_bytes: int | None,
    csv: str | None,
    as_json: bool,
    top: int | None,
    width: int,
) -> str:
    """What goes to stdout. It runs in a process of its own (guard.py)."""
    for_tables()
    from rung.analysis.per_step import divisor
    from rung.analysis.query import catalogue, query
    from rung.records.analyze import Rows
    from rung.records.record import plain
    from rung.report.tables import catalogue_lines
    from rung.runs import to_json

    trace = opened(Path(path), [Path(capture) for capture in captures], max_bytes=max_bytes)
    with limited():
        counted = divisor(trace)[0] if steps is None else steps
        table = query(trace, sql, steps=counted) if sql is not None else catalogue()
        if as_json:
            return to_json(plain(Rows(source=trace.source, sql=sql, rows=table.to_dicts()))) + "\n"
        if sql is None and not csv:
            return "\n".join(catalogue_lines(table, width)) + "\n"
        if not csv:
            return tables.shown(table, top, width, raw=True) + "\n"
        if csv == "-":
            return tables.as_csv(table)
    tables.write_csv(table, Path(csv))
    return ""
