"""`rung diff`: parse, call, render."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.cli import tables
from rung.cli.common import add_command, at_least, for_tables, opened, say, share
from rung.errors import UsageError

EXAMPLE = """\
example, two recordings of a training step on two H200 (shortened):
  $ rung diff before/ after/ --by op --top 2
  The step is 1.04× slower.
                                base       new     change
  a step of a GPU            20.6 ms   21.4 ms    +815 µs
    computation              13.3 ms   16.0 ms   +2.75 ms
  by operator                                               base       new     change        count
  aten::mm                                   appeared       0 ns   1.86 ms   +1.86 ms        0->24
  MmBackward0                                slower      2.13 ms   2.80 ms    +670 µs           47

more:
  rung diff before.json.gz after.json.gz                  by category, operator and module
  rung diff h100.json.gz mi300.json.gz --by shape         by operator and input shapes
  rung diff before/ after/                                each trace in a folder is a rank
  rung diff before.json.gz after.json.gz --html page.html
  rung diff before.json.gz after.json.gz --csv diff.csv   every row of every table
  rung diff before.db after.db --fail-if-slower 3%        for CI: exit code 1 if 3% slower or more

Times are of one step of one GPU. `0->24` are calls, in BASE and in NEW. Rows are aligned by
operator, not by kernel name, since kernel names change with vendors and versions; --by kernel
aligns by kernel name. Traces without GPU events are compared by the CPU time of their operators. A
trace shows one run. To know whether a small difference is real, repeat the runs with `rung
compare`.
"""
NAMES = ("category", "op", "shape", "module", "instance", "kernel")


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "diff", help_text, EXAMPLE, run)
    parser.add_argument("paths", nargs="*", type=Path, metavar="BASE NEW", help="two traces, or two folders of them")
    parser.add_argument(
        "--by", type=names, default=("category", "op", "module"), metavar="NAME[,NAME]",
        help=f"tables to show: {', '.join(NAMES)} (default: category,op,module)",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=at_least(0), default=12, metavar="N", help="rows to show per table; 0 shows all (default: 12)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write a page with bars for what became faster and slower"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the tables as CSV with all rows; - writes to stdout"
    )
    parser.add_argument(
        "--base-steps", type=at_least(1), metavar="N", help="number of steps in BASE (default: from the trace)"
    )
    parser.add_argument(
        "--new-steps", type=at_least(1), metavar="N", help="number of steps in NEW (default: from the trace)"
    )
    parser.add_argument(
        "--fail-if-slower", type=share, nargs="?", const=0.01, metavar="SHARE",
        help="exit with code 1 if a step of NEW takes longer by this share or more (default: 1%%)",
    )  # fmt: skip
    tables.add_captures(parser, "--base-capture", "BASE")
    tables.add_captures(parser, "--new-capture", "NEW")
    parser.add_argument("--partial", action="store_true", help="read a damaged file up to the damage")
    tables.add_limit(parser)
    parser.add_argument("--no-cache", action="store_true", help="do not cache the tables of a large file")


def run(parsed: argparse.Namespace) -> int:
    if len(parsed.paths) != 2:
        raise UsageError("give two traces, as in `rung diff before.json.gz after.json.gz`.")
    unknown = [name for name in parsed.by if name not in NAMES]
    if unknown:
        raise UsageError(f"--by {unknown[0]}: choose from {', '.join(NAMES)}.")
    to_stdout = parsed.csv is not None and str(parsed.csv) == "-"
    if to_stdout and parsed.json:
        raise UsageError("--csv - and --json both write to stdout; give --csv a file.")
    for_tables()
    from rung.analysis.diff import diff
    from rung.records.record import plain
    from rung.report.diff import diff_lines
    from rung.runs import to_json

    base, new = (
        opened(path, captures, partial=parsed.partial, max_bytes=parsed.max_bytes, cache=not parsed.no_cache)
        for path, captures in zip(parsed.paths, (parsed.base_capture, parsed.new_capture), strict=True)
    )
    by = (*parsed.by, *(name for name in ("kernel",) if parsed.html and name not in parsed.by))
    found = diff(base, new, base_steps=parsed.base_steps, new_steps=parsed.new_steps, by=by)
    if parsed.html:
        write_page(found, [(base, parsed.base_steps), (new, parsed.new_steps)], parsed.html)
        found = replace(found, tables={name: table for name, table in found.tables.items() if name in parsed.by})
    slower = parsed.fail_if_slower is not None and found.ratio >= 1 + parsed.fail_if_slower
    answer = found.record(failed=slower)
    if parsed.csv:
        tables.write_csv(found.rows(), parsed.csv)
    if parsed.json:
        print(to_json(plain(answer)))
    elif not to_stdout:
        width = shutil.get_terminal_size((100, 24)).columns
        print("\n".join(diff_lines(answer, width=width, top=parsed.top)))
    return 1 if slower else 0


def write_page(found: Any, traces: list[tuple[Any, int | None]], path: Path) -> None:
    """The page of --html. traces: each with the number of its steps, where it was given."""
    from rung.analysis.diff import whole_steps
    from rung.analysis.pictures import roofs
    from rung.report.diff_page import page
    from rung.runs import write_whole

    cut = [whole_steps(trace, steps) for trace, steps in traces]
    text = page(found, [roofs(trace, steps=steps) for trace, steps, _ in cut])
    write_whole(path, text, "give another --html")
    say(f"page: {path} ({len(text.encode()) / 1e6:.1f} MB, opens in any browser without a network)")


def names(text: str) -> tuple[str, ...]:
    """`A,B,...`"""
    return tuple(name.strip() for name in text.split(","))
