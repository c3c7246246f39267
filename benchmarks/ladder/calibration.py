"""Would predictions come nearer, if what is expected lay elsewhere in their range than in its middle?

    python benchmarks/ladder/calibration.py benchmarks/zoo/trials.csv h100.jsonl

reads what rungs were predicted to give and what they gave: tables with the columns rung, low, high and measured, and results files of
the zoo. A fixed seed draws half of the trials, on which the place in the range is fitted; the other half says whether it helps. Errors are
points of the step's time (docs/internals/ladder.md, "Predictions").
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rung.rungs import MIDDLE, speedup_at

SEED = 20261124
PLACES = [k / 100 for k in range(101)]


class Trial(NamedTuple):
    """A range of speedups that was predicted, and the speedup that was measured."""

    rung: str
    low: float
    high: float
    measured: float

    def error(self, place: float) -> float:
        """Points between what is expected at this place of the range, 0 its low end, and what was measured."""
        return min(100.0, 100 * abs(1 / speedup_at(self.low, self.high, place) - 1 / self.measured))


def read(path: Path) -> Iterator[Trial]:
    """The trials of a table or of a zoo's results file, without those that the budget cut short."""
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".csv":
            for row in csv.DictReader(file):
                yield Trial(row["rung"], float(row["low"]), float(row["high"]), float(row["measured"]))
            return
        for line in map(json.loads, file):
            for attempt in (line.get("climb") or {}).get("attempts", ()):
                if attempt.get("measured") and attempt.get("predicted") and not attempt.get("cut"):
                    yield Trial(attempt["rung"], *attempt["predicted"], attempt["measured"])


def halves(trials: Sequence[Trial], seed: int = SEED) -> tuple[list[Trial], list[Trial]]:
    """Those that the place is fitted on, and those that are held out."""
    drawn = random.Random(seed).sample(list(trials), len(trials))
    return drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]


def fitted(trials: Sequence[Trial]) -> float:
    """The place in the range with the least mean error."""
    return min(PLACES, key=lambda place: statistics.fmean(trial.error(place) for trial in trials))


def said(trials: Sequence[Trial], seed: int = SEED) -> str:
    fit, held = halves(trials, seed)
    place = fitted(fit)
    inside = sum(t.low <= t.measured <= t.high for t in trials)
    lines = [
        f"{len(trials)} trials, {inside} of them inside their range",
        f"fitted on {len(fit)}: {place:.2f} of the way from the low end; the middle is {MIDDLE:.2f}",
    ]
    for name, half in (("fitted on", fit), ("held out", held)):
        errors = [[t.error(p) for t in half] for p in (MIDDLE, place)]
        median, mean = ([f(e) for e in errors] for f in (statistics.median, statistics.fmean))
        lines.append(
            f"{name}: median error {median[0]:.1f} -> {median[1]:.1f} points, mean {mean[0]:.1f} -> {mean[1]:.1f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="+", type=Path, help="tables of trials, or results files of the zoo")
    parser.add_argument("--seed", type=int, default=SEED, help=f"that draws the halves (default: {SEED})")
    given = parser.parse_args()
    trials = [trial for path in given.file for trial in read(path)]
    if len(trials) < 4:
        print(f"there are {len(trials)} trials, which are too few for two halves; climb more.", file=sys.stderr)
        return 3
    print(said(trials, given.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
