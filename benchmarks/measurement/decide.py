"""Which rule is right how often, on streams whose truth is known. Prints the tables of docs/measurement.md.

python benchmarks/measurement/decide.py [--trials 400] [--seed 1] [--rung]
"""

from __future__ import annotations

import argparse
import math
import statistics

from machine import STREAMS, Machine
from rules import RULES, any_different, rung, rung_fixed


def table(title: str, rows: dict[str, list[str]]) -> None:
    print(f"\n### {title}\n\n| | {' | '.join(STREAMS)} |\n|---|{'---|' * len(STREAMS)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rung", action="store_true", help="leave the rules of others out")
    options = parser.parse_args()
    n, seed = options.trials, options.seed
    rules = {name: rule for name, rule in RULES.items() if "rung" in name or not options.rung}

    rows = {}
    for name, rule in rules.items():
        rows[name] = [
            f"{sum(rule(Machine(s, seed * 10**6 + k), 1.0) in ('faster', 'slower') for k in range(n)) / n:.0%}"
            for s in STREAMS.values()
        ]
    table("A against A: called different", rows)
    for effect in (1.01, 1.02):
        rows = {}
        for name, rule in rules.items():
            rows[name] = [
                f"{sum(rule(Machine(s, seed * 10**6 + 10**5 + k), effect) == 'slower' for k in range(n // 2)) / (n // 2):.0%}"
                for s in STREAMS.values()
            ]
        table(f"B truly {effect - 1:.0%} slower: called slower", rows)

    print("\nRung alone:")
    rows = {}
    for effect in (1.0, 1.02):
        seen = {
            key: [(rung(machine, effect), machine.measured) for k in range(n // 2)
                  for machine in [Machine(s, seed * 10**6 + 2 * 10**5 + k)]]
            for key, s in STREAMS.items()
        }  # fmt: skip
        at = "no difference" if effect == 1.0 else f"{effect - 1:.0%}"
        rows[f"says same within 1 % at {at}"] = [
            f"{statistics.fmean(c.answer == 'same' for c, _ in v):.0%}" for v in seen.values()
        ]
        rows[f"interval covers the truth at {at}"] = [
            f"{statistics.fmean(c.speedup.low <= 1 / effect <= c.speedup.high for c, _ in v):.1%}"
            for v in seen.values()
        ]
        rows[f"bias of the ratio at {at}"] = [
            f"{statistics.fmean(math.log(c.speedup.value * effect) for c, _ in v):+.2%}" for v in seen.values()
        ]
        rows[f"seconds measured at {at}, median / 95 % of trials below"] = [
            f"{statistics.median(m for _, m in v):.1f} / {statistics.quantiles([m for _, m in v], n=20)[-1]:.1f}"
            for v in seen.values()
        ]
        rows[f"smallest visible change at {at}, median"] = [
            f"{statistics.median(c.visible for c, _ in v):.2%}" for v in seen.values()
        ]
    table("Rung's answers in full", rows)

    rows = {}
    for effect in (1.0, 1.02):
        seen = {
            key: [rung_fixed(Machine(s, seed * 10**6 + 3 * 10**5 + k), effect) for k in range(n)]
            for key, s in STREAMS.items()
        }
        at = "no difference" if effect == 1.0 else f"{effect - 1:.0%}"
        rows[f"95 % interval covers the truth at {at}"] = [
            f"{statistics.fmean(i.low <= -math.log(effect) <= i.high for i in v):.1%}" for v in seen.values()
        ]
        rows[f"bias of the ratio at {at}"] = [
            f"{statistics.fmean(i.value + math.log(effect) for i in v):+.3%}" for v in seen.values()
        ]
    table("The interval itself: ten restarts, no looks, nominal 95 %", rows)

    rows = {}
    for sides in (3, 5):
        rows[f"{sides} equal sides: any pair called different"] = [
            f"{statistics.fmean(any_different(Machine(s, seed * 10**6 + 4 * 10**5 + k), sides) for k in range(n // 2)):.0%}"
            for s in STREAMS.values()
        ]
    table("More than two: Holm's procedure over all pairs", rows)


if __name__ == "__main__":
    main()
