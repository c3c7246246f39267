"""When does a climb on a CPU have its first and its verified recipe, with workers that are forked and with fresh ones?

    python benchmarks/climb/forks.py [--climbs 3] [--budget 90] [-- TARGET --option value ...]

Both kinds take turns, in an order that changes sides, with one cache of compiled code. Seconds are counted from the start of the command.
Each climb is a process of its own, in a folder that is removed afterwards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

CLIMB = (
    "import sys; from rung.ladder.climb import climb; {}from rung.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
FRESH = "climb._on_a_cpu = lambda request: False; "
DEFAULT = ("tiny-transformer", "--size", "tiny", "--batch-size", "1")


def climbed(forked: bool, words: Sequence[str], env: dict[str, str], out: Path) -> tuple[float | None, float | None]:
    """Seconds until there was a recipe, and until one was verified; None where there never was."""
    command = [sys.executable, "-c", CLIMB.format("" if forked else FRESH), "climb", *words, "--out", str(out)]
    began = time.monotonic()
    first = verified = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as climb:
        assert climb.stdout is not None
        for line in climb.stdout:
            if "recipe.toml:" in line:
                first = first or time.monotonic() - began
                verified = verified or (time.monotonic() - began if line.rstrip().endswith(", verified") else None)
    return first, verified


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--climbs", type=int, default=3, help="of each kind")
    parser.add_argument("--budget", type=int, default=90)
    parser.add_argument("target", nargs="*", default=DEFAULT)
    given = parser.parse_args()
    print("| workers | first recipe | verified |\n|---|---|---|")
    with TemporaryDirectory() as folder:
        env = {**os.environ, "RUNG_HISTORY": "off", "RUNG_CACHE": f"{folder}/cache"}
        for k in range(given.climbs):
            for forked in (True, False) if k % 2 == 0 else (False, True):
                words = [*given.target, "--budget", str(given.budget)]
                found = climbed(forked, words, env, Path(folder, f"{k}-{forked}"))
                print("|", "forked" if forked else "fresh", "|", " | ".join(_said(s) for s in found), "|", flush=True)
    return 0


def _said(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


if __name__ == "__main__":
    raise SystemExit(main())
