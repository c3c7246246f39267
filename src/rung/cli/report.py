"""`rung report RUN`: the terminal's summary of a run, and its page made anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rung.cli.common import add_command, no_rest
from rung.errors import UsageError

EXAMPLE = """\
example:
  rung report .rung/20260101-120000-tiny-transformer
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "report", help_text, EXAMPLE)
    parser.add_argument("directory", nargs="?", type=Path, metavar="RUN", help="a run directory")
    parser.set_defaults(run=lambda parsed, rest: run(parser, parsed, rest))


def run(parser: argparse.ArgumentParser, parsed: argparse.Namespace, rest: Sequence[str]) -> int:
    if parsed.help:
        parser.print_help()
        return 0
    no_rest(rest)
    if not parsed.directory:
        raise UsageError("give a run directory; `rung runs` lists those there are.")
    from rung.report.html import render
    from rung.report.terminal import summary
    from rung.runs import Run, to_json, write_whole

    data = Run.open_(parsed.directory).data()
    page = parsed.directory / "report.html"
    write_whole(page, render(data))
    if parsed.json:
        print(to_json(data))
        return 0
    print(summary(data, color=sys.stdout.isatty()))
    print(f"report: {page}")
    return 0
