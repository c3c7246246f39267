"""What sampling costs the steps beside it: on and off in turns of a second."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence

from commands import Bench, end

from rung.profilers.sampling import Sampling

# Steps, told by the clock that the samples have.
STEPS = """
import sys, time
from rung.hardware.device import synchronize
from rung.ladder.candidate import Candidate
c = Candidate()
c.open("tiny-transformer", {"size": sys.argv[1]}, [], None)
c.first()
for _ in range(5):
    c.call()
synchronize(c.device)
print("ready", flush=True)
until, out = time.monotonic() + float(sys.argv[2]), []
while time.monotonic() < until:
    begin = time.monotonic_ns()
    c.call()
    synchronize(c.device)
    out.append((begin, time.monotonic_ns() - begin))
with open(sys.argv[3], "w") as file:
    file.write("\\n".join(f"{a} {b}" for a, b in out))
"""


def sampling(bench: Bench) -> Iterator[str]:
    """Steps go on in one process; sensors are read in another, on and off in turns of a second."""
    yield from ("| steps of | rate | steps on, off | median off | on / off, 95 % | CPU time of a core | a round |",
             "|---|---|---|---|---|---|---|")  # fmt: skip
    small, large = bench.sizes[0], bench.sizes[-1]
    for size, rate, seconds in ((small, 10.0, 14.0), (small, 100.0, 10.0), (large, 10.0, 14.0)):
        if bench.left() < seconds + 12:
            yield f"| {size} | {rate:g} Hz | left out: no time was left | | | | |"
            continue
        try:
            yield turns(bench, size, rate, seconds)
        except Exception as error:
            yield f"| {size} | {rate:g} Hz | {type(error).__name__}: {error} | | | | |"


def turns(bench: Bench, size: str, rate: float, seconds: float, turn: float = 1.0) -> str:
    times = bench.folder / f"steps-{size}-{rate:g}.txt"
    steps = bench.started(STEPS, [size, str(seconds), str(times)])
    periods: list[tuple[int, int, bool]] = []
    costs, on = [], True
    try:
        while steps.poll() is None:
            begun = time.monotonic_ns()
            if on:
                with Sampling(bench.folder / "turns", rate) as watched:
                    time.sleep(turn)
                costs.append(watched.overhead)
            else:
                time.sleep(turn)
            periods.append((begun, time.monotonic_ns(), on))
            on = not on
        steps.wait(timeout=10)
    finally:
        end(steps)
    marks = [tuple(map(int, line.split())) for line in times.read_text().splitlines()]
    # A tenth of a second at each end of a turn is nobody's: a thread begins, files are written.
    groups = [(on, [ns for at, ns in marks if begin + 10**8 <= at <= finish - 10**8]) for begin, finish, on in periods]
    groups = [(on, found) for on, found in groups if len(found) >= 3]
    pairs = [(a, b) if first else (b, a) for (first, a), (second, b) in zip(groups[::2], groups[1::2], strict=False)
             if first != second]  # fmt: skip
    ratios = [statistics.median(a) / statistics.median(b) for a, b in pairs]
    if len(ratios) < 3:
        raise RuntimeError(f"only {len(ratios)} pairs of turns had steps")
    low, high = interval(ratios)
    off = statistics.median(ns for _, b in pairs for ns in b)
    counts = sum(len(a) for a, _ in pairs), sum(len(b) for _, b in pairs)
    cpu, read = (statistics.median(getattr(c, key) for c in costs) for key in ("cpu_share", "read_seconds"))
    return (f"| {size} | {rate:g} Hz | {counts[0]}, {counts[1]} | {off / 1e6:.3f} ms | {statistics.median(ratios):.4f} "
            f"({low:.4f} to {high:.4f}) | {cpu:.2%} | {read * 1e3:.2f} ms |")  # fmt: skip


def interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Of the median, by the bootstrap over turns."""
    random.seed(0)
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]
