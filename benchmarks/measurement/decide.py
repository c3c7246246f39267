"""Which rule is right how often, on streams whose truth is known. Prints the tables of docs/internals/measurement.md.

python benchmarks/measurement/decide.py [--trials 400] [--seed 1] [--rung]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from statistics import fmean, median, quantiles
from typing import TypeVar

from machine import STREAMS, Machine
from rules import OTHERS, any_different, rung, rung_fixed

Seen = TypeVar("Seen")
EQUAL, EFFECTS = 1.0, (1.01, 1.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=400, help="of A against A; half as many of everything else")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rung", action="store_true", help="leave the rules of others out")
    options = parser.parse_args()
    n = options.trials

    def trials(of: Callable[[Machine], Seen], count: int, part: int) -> list[list[Seen]]:
        """What `of` says of so many machines, for each stream; the same machines for every rule."""
        first = options.seed * 10**6 + part * 10**5
        return [[of(Machine(stream, first + k)) for k in range(count)] for stream in STREAMS.values()]

    ours = {
        effect: trials(lambda m, e=effect: (rung(m, e), m.measured), n if effect == EQUAL else n // 2, part)
        for part, effect in enumerate((EQUAL, *EFFECTS))
    }
    for part, effect in enumerate(ours):
        rows = {}
        for name, rule in OTHERS.items() if not options.rung else ():
            rows[name] = trials(lambda m, r=rule, e=effect: r(m, e), len(ours[effect][0]), part)
        rows["**rung compare**"] = [[said.answer for said, _ in cell] for cell in ours[effect]]
        wrong = ("faster", "slower") if effect == EQUAL else ("slower",)
        title = (
            "A against A: called different" if effect == EQUAL else f"B truly {effect - 1:.0%} slower: called slower"
        )
        table(title, {name: [percent(a in wrong for a in cell) for cell in cells] for name, cells in rows.items()})
    table("Rung's answers in full", {k: v for e in (EQUAL, EFFECTS[-1]) for k, v in in_full(ours[e], e).items()})

    rows = {}
    for effect in (EQUAL, EFFECTS[-1]):
        fixed = trials(lambda m, e=effect: rung_fixed(m, e), n, 3)
        truth = -math.log(effect)
        rows |= {
            f"95 % interval covers the truth {at(effect)}": [
                percent((i.low <= truth <= i.high for i in cell), 1) for cell in fixed
            ],
            f"bias of the ratio {at(effect)}": [f"{fmean(i.value - truth for i in cell):+.3%}" for cell in fixed],
        }
    table("The interval itself: ten restarts, no looks, nominal 95 %", rows)

    rows = {
        f"{sides} equal sides: any pair called different": [
            percent(cell) for cell in trials(lambda m, s=sides: any_different(m, s), n // 2, 4)
        ]
        for sides in (3, 5)
    }
    table("More than two: Holm's procedure over all pairs", rows)


def in_full(cells: list, effect: float) -> dict[str, list[str]]:  # type: ignore[type-arg]
    """Rows on Rung's own comparisons, each with the seconds that it measured."""
    truth = 1 / effect
    return {
        f"says same within 1 % {at(effect)}": [percent(c.answer == "same" for c, _ in cell) for cell in cells],
        f"interval covers the truth {at(effect)}": [
            percent((c.speedup.low <= truth <= c.speedup.high for c, _ in cell), 1) for cell in cells
        ],
        f"bias of the ratio {at(effect)}": [
            f"{fmean(math.log(c.speedup.value / truth) for c, _ in cell):+.2%}" for cell in cells
        ],
        f"seconds measured {at(effect)}, median / 95 % of trials below": [
            f"{median(s for _, s in cell):.1f} / {quantiles([s for _, s in cell], n=20)[-1]:.1f}" for cell in cells
        ],
        f"smallest visible change {at(effect)}, median": [
            f"{median(c.visible for c, _ in cell):.2%}" for cell in cells
        ],
    }


def at(effect: float) -> str:
    return "at no difference" if effect == EQUAL else f"at {effect - 1:.0%}"


def percent(hits: object, digits: int = 0) -> str:
    return f"{fmean(hits):.{digits}%}"  # type: ignore[call-overload, no-any-return]


def table(title: str, rows: dict[str, list[str]]) -> None:
    print(f"\n### {title}\n\n| | {' | '.join(STREAMS)} |\n|---|{'---|' * len(STREAMS)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
