"""What `rung compare` loses and saves by ending comparisons that more restarts would hardly decide (`rung.measure.futility`).

    python benchmarks/measurement/futile.py

Log-ratios of restarts are drawn from normal distributions: by how much B is faster, how far restarts scatter, and how many fit into the budget
make a kind. Each comparison that is ended goes on here, as if it had not been, to see whether it would have had a verdict.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass
from itertools import product

from rung.measure import COMPARE, judge
from rung.measure.futility import FUTILE, chance

MARGIN = 0.01  # what counts as the same, as by default of `rung compare`
MOST = (7, 8, 12, 16, 30)  # restarts that fit
SCATTER = (0.01, 0.02, 0.05, 0.2)  # standard deviation of their log-ratios
EFFECTS = (0.0, 0.01, 0.02, 0.05, 0.1)
LOOKS = dict(COMPARE)


@dataclass(frozen=True)
class Ended:
    """A comparison. restarts: that it took; lost: it was ended early, and would have had a verdict."""

    restarts: int
    lost: bool


def compared(effect: float, scatter: float, most: int, rng: random.Random) -> Ended:
    ratios: list[float] = []
    ended = 0
    for n in range(1, most + 1):
        ratios.append(rng.gauss(effect, scatter))
        said = judge(ratios, looks=COMPARE, margin=MARGIN, last=n == most)
        if said and said.final:
            return Ended(ended or n, bool(ended) and said.answer != "undecided")
        if not ended and n in LOOKS and chance(ratios, looks=COMPARE, margin=MARGIN, most=most) < FUTILE:
            ended = n
    return Ended(ended or most, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="comparisons of each kind (default: 400)")
    count = parser.parse_args().count
    rng = random.Random(1)
    print("| most | scatter | effect | verdicts lost | mean restarts |\n|---|---|---|---|---|")
    shares = []
    for most, scatter, effect in product(MOST, SCATTER, EFFECTS):
        seen = [compared(effect, scatter, most, rng) for _ in range(count)]
        shares.append(sum(one.lost for one in seen) / count)
        mean = statistics.fmean(one.restarts for one in seen)
        print(f"| {most} | {scatter:.0%} | {effect:.0%} | {shares[-1]:.2%} | {mean:.1f} |", flush=True)
    none = sum(share == 0 for share in shares)
    print(f"\nlost at most: {max(shares):.2%} of a kind; none in {none} of {len(shares)} kinds")


if __name__ == "__main__":
    main()
