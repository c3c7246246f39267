"""`rung rungs`: what a climb can try."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rung.cli.common import add_command, add_runs_folder, rung_name, runs_in
from rung.cli.output import colored, show_styled
from rung.errors import RungError, UsageError

EXAMPLE = """\
example:
  $ rung rungs fused-qkv
  fused-qkv
    what      one GEMM for q, k and v
    level     3, rewrites of the graph
    changes   linear layers that read the same input become one (horizontal fusion); in inference
              their weights are packed
    numerics  reassociated: other kernels of the same precision may run, so sums may be added in
              another order
    needs     sibling projections

more:
  rung rungs                       a table of all rungs, with what each needs
  rung rungs --level 3             only rewrites of the graph
  rung rungs fused-qkv capture     everything about two rungs
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "rungs", help_text, EXAMPLE, run)
    parser.add_argument("names", nargs="*", type=rung_name, metavar="NAME", help="print everything about these rungs")
    parser.add_argument("--level", type=int, choices=range(1, 6), help="list only this level")
    add_runs_folder(parser, "count in this folder's climbs how often each was kept")


def run(parsed: argparse.Namespace) -> int:
    from rung.cli.tables import width
    from rung.records.climb import Attempt
    from rung.records.record import plain
    from rung.report import ladder
    from rung.rungs import LADDER, rungs_named
    from rung.runs import to_json

    attempts: list[Attempt] = []
    for found in runs_in(parsed.root):
        try:
            attempts += found.attempts()
        except RungError as error:
            print(f"rung: not counted: {error}", file=sys.stderr)
    seen = ladder.outcomes(attempts)
    rungs = [rung for rung in rungs_named(parsed.names) or LADDER if parsed.level in (None, rung.level)]
    if not rungs:
        raise UsageError(f"none of these is of level {parsed.level}.")
    if parsed.json:
        print(to_json([plain(ladder.listed(rung, seen.get(rung.name))) for rung in rungs]))
    elif parsed.names:
        blocks = [ladder.rung_lines(rung, seen.get(rung.name), width()) for rung in rungs]
        print("\n\n".join("\n".join(lines) for lines in blocks))
    else:
        show_styled("\n".join(ladder.list_lines(rungs, seen, width(), colored())))
    return 0
