"""How often a climb claims a gain where there is none: rungs that change nothing, on machines whose noise is known.

    python benchmarks/climb/false_alarms.py [--climbs 400] [--candidates 10] [--seed 1]
    python benchmarks/climb/false_alarms.py --gain 2       # how often a rung that truly gives 2 % is kept

It drives the climb's own decisions (`attempt.judge_one_restart`, `measure.decide`, `confirm.refutation`) with the simulated streams of
benchmarks/measurement/machine.py. Every candidate computes the same and takes as long as the untouched model. `kept` is a rung that was
decided to be faster, with the looks of a climb and with those of one whose restarts are cheap; `verified` a recipe that claims 8 % before it is confirmed; `confirmed` one that fresh restarts confirm. Shares are of climbs, with Clopper-Pearson intervals at 95 %.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).parents[1] / "measurement"))

from machine import STREAMS, Machine, Stream
from rules import _restart

from rung.ladder.climb.answer import PROVISIONAL_GAIN, VERIFIED_GAIN
from rung.ladder.climb.attempt import judge_one_restart
from rung.ladder.climb.confirm import refutation
from rung.measure import CLIMB, PATIENT, Comparison, Looks, Restart, decide

LAYOUT = {"layout, 2 %": Stream(layout=0.02)}


@dataclass(frozen=True)
class Climbed:
    """One simulated climb. kept: rungs that were decided to be faster; verified: whether all that was kept claims the 8 % that `verified`
    asks for; confirmed: whether fresh restarts confirm it."""

    kept: int
    verified: bool
    confirmed: bool


def climb(machine: Machine, candidates: int) -> Climbed:
    """A plain mode and so many rungs, none of which changes anything; then the confirmation."""
    plain = judge_one_restart(pair(machine), True).speedup.value
    gains = [gain for gain in (attempted(machine) for _ in range(candidates)) if gain > 1]
    claimed = math.prod(gains) * (plain if plain >= PROVISIONAL_GAIN else 1.0)
    confirmed = claimed > 1 and not refutation(decided([pair(machine)], machine), None, "")
    return Climbed(len(gains), claimed >= VERIFIED_GAIN, confirmed)


def pair(machine: Machine, factor: float = 1.0) -> Restart:
    return _restart([machine.process(), machine.process(factor)])


def attempted(machine: Machine, looks: Looks = CLIMB, factor: float = 1.0) -> float:
    """What a rung is seen to give where it is kept, else 1. factor: its step's time, of the one without it."""
    first = pair(machine, factor)
    seen = judge_one_restart(first, True)
    found = seen if seen.answer != "undecided" else decided([first], machine, looks, factor)
    return found.speedup.value if found.answer == "faster" else 1.0


def decided(restarts: list[Restart], machine: Machine, looks: Looks = CLIMB, factor: float = 1.0) -> Comparison:
    while True:
        said = decide(restarts, looks=looks)
        if said and said.final:
            return said
        restarts.append(pair(machine, factor))


def share(hits: int, of: int) -> str:
    low = beta.ppf(0.025, hits, of - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, of - hits) if hits < of else 1.0
    return f"{hits / of:.1%} ({low:.1%}-{high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--climbs", type=int, default=400)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gain", type=float, default=0.0, help="percent that each rung truly gives")
    options = parser.parse_args()
    streams = {**STREAMS, **LAYOUT}
    if options.gain:
        print(
            "| noise | kept, of rungs that truly give "
            + f"{options.gain:g} % | where restarts are cheap |\n|---|---|---|"
        )
    else:
        print(
            f"| noise | one rung kept | where restarts are cheap | `verified`, of {options.candidates} rungs | `confirmed` |"
        )
        print("|---|---|---|---|---|")
    for name, stream in streams.items():
        seeds = [options.seed * 10**6 + k for k in range(options.climbs)]
        factor = 1 / (1 + options.gain / 100)
        alone = {
            looks: sum(attempted(Machine(stream, seed + 10**5), looks, factor) > 1 for seed in seeds)
            for looks in (CLIMB, PATIENT)
        }
        cells = [share(kept, len(seeds)) for kept in alone.values()]
        if not options.gain:
            found = [climb(Machine(stream, seed), options.candidates) for seed in seeds]
            kept, tried = sum(f.kept for f in found), options.climbs * options.candidates
            cells[0] = share(kept, tried)
            cells += [
                share(sum(f.verified for f in found), len(found)),
                share(sum(f.confirmed for f in found), len(found)),
            ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
