"""`rung watch`: parse, call, render."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from rung.cli.common import add_command, seconds
from rung.cli.output import can_draw, raw
from rung.errors import InputError

if TYPE_CHECKING:
    from rung.records.watch import Kind, Watched

EXAMPLE = """\
example, a training script on a CPU:
  $ rung watch --once
  train: 1 rank on 1 host, ended; step 150, 534 ms

  rank  host  step    alone   waits  slower  memory   power  clock  seen
  0     vm    534 ms  534 ms  –      –       435 MiB  –      –      ended

in your training script, on every rank:
  with rung.watch(model) as watching:      # the model that DistributedDataParallel wraps
      for batch in data:
          ...
          optimizer.step()
          watching.step()
For Hugging Face's Trainer and Lightning, use WatchCallback() (docs/how-to/training-loops.md).

more:
  rung watch                     the job that last wrote to .rung/watch, until it ends
  rung watch 12                  SLURM job 12; 12_3 is task 3 of an array
  rung watch /shared/run/watch   the folder that you gave to rung.watch(folder=...)
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "watch", help_text, EXAMPLE, run)
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="a folder, a SLURM job as squeue shows it, or a name in .rung/watch (default: the newest)",
    )
    parser.add_argument("--once", action="store_true", help="print the state once, and stop; --json does the same")
    parser.add_argument(
        "--interval", type=seconds, default=2.0, metavar="S", help="seconds between updates (default: 2)"
    )


def run(parsed: argparse.Namespace) -> int:
    from rung.records.record import plain
    from rung.runs import to_json
    from rung.watching.files import find, samples
    from rung.watching.judge import judged

    folder = find(parsed.job)

    def look() -> Watched:
        ranks = samples(folder)
        if not ranks:
            raise InputError(f"{folder} has no line that can be read: see that it is what the ranks of a job write to.")
        return judged(folder, ranks, time.time())

    if parsed.json:
        print(to_json(plain(look())), end="")
        return 0
    if parsed.once:
        print("\n".join(_lines(look())))
        return 0
    show = _draw if can_draw(sys.stdout) else _Told()
    while True:
        found = look()
        show(found)
        if found.state == "ended":
            return 0
        time.sleep(parsed.interval)


def _lines(found: Watched) -> list[str]:
    from rung.report.watch import watch_lines

    return watch_lines(found, shutil.get_terminal_size((100, 24)).columns)


def _draw(found: Watched) -> None:
    """In the place of what was there before."""
    terminal = raw(sys.stdout)
    height = shutil.get_terminal_size((100, 24)).lines
    terminal.write("\x1b[H\x1b[2J")
    print("\n".join(_lines(found)[: height - 1]), flush=True)


class _Told:
    """Where output is no terminal: the whole at first and at the end, and in between each sentence when it begins to hold."""

    def __init__(self) -> None:
        self._before: set[tuple[Kind, tuple[int, ...]]] | None = None

    def __call__(self, found: Watched) -> None:
        now = {(finding.kind, tuple(finding.ranks)) for finding in found.findings}
        if self._before is None or found.state == "ended":
            print("\n".join(_lines(found)), flush=True)
        else:
            for finding in found.findings:
                if (finding.kind, tuple(finding.ranks)) not in self._before:
                    print(f"{time.strftime('%H:%M:%S')} step {found.step}: {finding.text}", flush=True)
        self._before = now
