"""`rung report RUN`: the terminal's summary of a run, and its page made anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rung.cli.common import add_command
from rung.errors import UsageError

EXAMPLE = """\
example:
  rung report .rung/20260101-120000-tiny-transformer
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "report", help_text, EXAMPLE, run)
    parser.add_argument("directory", nargs="?", type=Path, metavar="RUN", help="a run directory")


def run(parsed: argparse.Namespace) -> int:
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
