"""`rung query`: parse, call, render."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rung.cli import tables
from rung.cli.common import add_command, at_least, for_tables, opened
from rung.errors import UsageError

EXAMPLE = """\
examples:
  rung query trace.json.gz                                     the tables and their columns
  rung query trace.json.gz "select name, count(*) n, sum(dur) as total_ns from events where kind = 'kernel'
                            group by name order by total_ns desc limit 10"
  rung query trace.json.gz "select * from ops where category = 'gemm'" --csv gemms.csv

The tables are the events, and every analysis of `rung analyze --show list` by name. The SQL is that of polars. A column
whose name ends in _ns is shown as a time, in _bytes as a size, in share as a percentage.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "query", help_text, EXAMPLE, run)
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help="a trace, a database, or a folder of them")
    parser.add_argument("sql", nargs="?", metavar="SQL", help="a SELECT (default: show the tables)")
    tables.add_options(parser)
    parser.add_argument(
        "--steps", type=at_least(1), metavar="N", help="how many steps were recorded (default: as the trace says)"
    )


def run(parsed: argparse.Namespace) -> int:
    if not parsed.path:
        raise UsageError('give a trace and a question, as in `rung query trace.json.gz "select * from kernels"`.')
    if parsed.csv and parsed.json:
        raise UsageError("give one of --csv and --json.")
    for_tables()
    from rung.analysis.per_step import divisor
    from rung.analysis.query import catalogue, query
    from rung.report.tables import catalogue_lines
    from rung.runs import to_json

    trace = opened(parsed.path)
    steps = divisor(trace)[0] if parsed.steps is None else parsed.steps
    answer = query(trace, parsed.sql, steps=steps) if parsed.sql is not None else catalogue()
    if parsed.csv:
        tables.write_csv(answer, parsed.csv)
    elif parsed.json:
        print(to_json({"kind": "query", "source": trace.source, "sql": parsed.sql, "rows": answer.to_dicts()}))
    elif parsed.sql is None:
        print("\n".join(catalogue_lines(answer, tables.width())))
    else:
        print(tables.shown(answer, parsed.top))
    return 0
