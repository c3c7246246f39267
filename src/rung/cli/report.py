"""`rung report RUN`: the terminal's summary of a run, and its page made anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rung.cli.common import add_command, after_the_answer
from rung.cli.output import show_styled
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
    from rung.runs import Run, to_json

    run = Run.open_(parsed.directory)
    data = run.data()
    show_styled(to_json(data) if parsed.json else summary(data, color=sys.stdout.isatty()))
    with after_the_answer():  # a run that was archived may lie where nothing can be written
        run.write_text("report.html", render(data), f"copy {parsed.directory} to where there is")
    if not parsed.json:
        print(f"report: {parsed.directory / 'report.html'}")
    return 0
