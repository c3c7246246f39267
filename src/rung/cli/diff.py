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
examples:
  rung diff before.json.gz after.json.gz            by category, operator and module
  rung diff h100.json.gz mi300.json.gz --by shape   by operator and the shapes of its inputs
  rung diff base/ new/ --base-steps 3               folders: every trace in them, as ranks of one run
  rung diff before.json.gz after.json.gz --html page.html    the same as a page, with bars and by kernel, too
  rung diff before.json.gz after.json.gz --csv diff.csv      every row of every table (-: to stdout)
  rung diff base.db new.db --fail-if-slower 3%      exit code 1 where the step takes 3 % longer or more

Times are of one step of one GPU. Rows are aligned by what the model asked for, and not by kernel names, which change
with vendors and versions (unless you ask for it: --by kernel). A trace shows one run: whether a small difference is
real, only repeated runs can say (`rung compare`).
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
        "--top", type=at_least(0), default=12, metavar="N", help="rows of a table to show (default: 12; 0: all)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write a page: what became faster and slower, as bars"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the tables as CSV, all rows (-: to stdout)")
    parser.add_argument("--base-steps", type=int, metavar="N", help="steps recorded in BASE (default: as it says)")
    parser.add_argument("--new-steps", type=int, metavar="N", help="steps recorded in NEW (default: as it says)")
    parser.add_argument(
        "--fail-if-slower", type=share, nargs="?", const=0.01, metavar="SHARE",
        help="exit with 1 where NEW's step takes longer by this share (default: 1%%) or more",
    )  # fmt: skip
    tables.add_captures(parser, "--base-capture", "BASE")
    tables.add_captures(parser, "--new-capture", "NEW")
    parser.add_argument("--partial", action="store_true", help="of a damaged file, read what is whole")
    tables.add_limit(parser)
    parser.add_argument("--no-cache", action="store_true", help="neither keep nor use the tables of a large file")


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
