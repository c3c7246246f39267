"""How others, and Rung, decide whether B is slower than A: each a function of a machine and of B's true factor."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import numpy as np
from machine import CALL, Machine, Process
from scipy import stats

from rung.measure import COMPARE, STUDENT, Comparison, Interval, Restart, decide, interleaved, rank, warm_up

BLOCK = 10  # calls: 10 ms, as long as the shortest noise that is to be cancelled
QUADS = 6


def rung(machine: Machine, factor: float, margin: float = 0.01) -> Comparison:
    """Rung's own procedure: fresh processes, warm-up found, interleaved blocks, planned looks."""
    restarts: list[Restart] = []
    while True:
        restarts.append(_restart([machine.process(), machine.process(factor)]))
        said = decide(restarts, looks=COMPARE, margin=margin)
        if said and said.final:
            return said


def rung_fixed(machine: Machine, factor: float) -> Interval:
    """The log-ratio of ten restarts with Student's interval at 95 %, as a comparison without looks would give it."""
    restarts = [_restart([machine.process(), machine.process(factor)]) for _ in range(10)]
    return STUDENT.interval([r.log_ratio() for r in restarts], 0.95)


def any_different(machine: Machine, sides: int) -> bool:
    """Whether Rung's ranking calls any two of so many equal sides different."""
    ratios: dict[tuple[str, str], list[float]] = {
        (str(i), str(j)): [] for i, j in itertools.combinations(range(sides), 2)
    }
    while True:
        restart = _restart([machine.process() for _ in range(sides)])
        for (i, j), found in ratios.items():
            found.append(restart.log_ratio(int(i), int(j)))
        said = rank(ratios, looks=COMPARE, margin=0.01)
        if said and said.final:
            return any(p.answer in ("faster", "slower") for p in said.pairs)


def _restart(sides: list[Process]) -> Restart:
    for side in sides:
        side.run()
        warm_up(lambda side=side: side.run()[0], lambda: 1.0)
    lots = random.Random(int(sides[0].machine.random.integers(2**32)))
    return interleaved([lambda side=side: side.run(BLOCK) for side in sides], QUADS, lots=lots)[0]


def _told_apart(machine: Machine, factor: float, one: Callable[[Process], float]) -> str:
    """What one process of A and then one of B say; a change of 1 % is believed."""
    a = one(machine.process())
    ratio = one(machine.process(factor)) / a
    return "slower" if ratio > 1.01 else "faster" if ratio < 0.99 else "undecided"


def mean_of_100(machine: Machine, factor: float) -> str:
    def one(process: Process) -> float:
        process.run(10)
        return statistics.fmean(process.run(100))

    return _told_apart(machine, factor, one)


def do_bench(machine: Machine, factor: float) -> str:
    """triton.testing.do_bench: 25 ms of warm-up, then 100 ms, the mean."""

    def one(process: Process) -> float:
        process.run(1)
        estimate = statistics.fmean(process.run(5))
        process.run(max(1, int(25e6 / estimate)))
        return statistics.fmean(process.run(max(1, int(100e6 / estimate))))

    return _told_apart(machine, factor, one)


def blocked_autorange(machine: Machine, factor: float) -> str:
    """torch.utils.benchmark: blocks over 0.2 s, the median; Compare's 1 %."""

    def one(process: Process) -> float:
        process.run(2)
        return statistics.median(process.run(200))

    return _told_apart(machine, factor, one)


def pyperf(machine: Machine, factor: float) -> str:
    """20 processes of 1 warm-up and 3 values of 0.1 s each, all of A before all of B; t over the 60 values."""

    def one(of: float) -> list[float]:
        values = []
        for _ in range(20):
            process = machine.process(of)
            process.run(int(100e6 / CALL))
            values += [statistics.fmean(process.run(int(100e6 / CALL))) for _ in range(3)]
        return values

    a, b = one(1.0), one(factor)
    if stats.ttest_ind(a, b).pvalue >= 0.05:
        return "undecided"
    return "slower" if np.mean(b) > np.mean(a) else "faster"


OTHERS: dict[str, Callable[[Machine, float], str]] = {
    "mean of 100, 1 %": mean_of_100,
    "triton do_bench, 1 %": do_bench,
    "torch blocked_autorange, 1 %": blocked_autorange,
    "pyperf, t-test": pyperf,
}
