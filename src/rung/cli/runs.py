"""`rung runs`: what was climbed before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rung.cli.common import ROOT, add_command, runs_in
from rung.errors import RungError

EXAMPLE = """\
example:
  rung runs --in .rung
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "runs", help_text, EXAMPLE, run)
    parser.add_argument("--in", dest="root", type=Path, default=ROOT, metavar="DIR", help=f"where (default: {ROOT})")


def run(parsed: argparse.Namespace) -> int:
    from rung.report.lines import run_line
    from rung.report.units import one_line
    from rung.runs import Run, to_json

    def document(run: Run) -> dict[str, Any]:
        """A damaged run is part of the list like any other: it hides none of them."""
        try:
            return {k: v for k, v in run.data().items() if k in ("directory", "running", "manifest", "result")}
        except RungError as error:
            return {"directory": str(run.directory), "error": str(error)}

    def line(run: Run) -> str:
        try:
            return run_line(run.record())
        except RungError as error:
            return f"{one_line(run.directory)}  damaged: {one_line(error)}"

    found = runs_in(parsed.root)
    if parsed.json:
        print(to_json([document(run) for run in found]))
        return 0
    for run in found:
        print(line(run))
    if not found:
        print(f"no runs in {parsed.root}; `rung climb tiny-transformer` makes one.")
    return 0
