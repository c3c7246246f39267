"""What one measurement says of streams whose truth is known: its median, the interval, and where it was warm.

python benchmarks/measurement/steady.py [--trials 200] [--seed 1] [--streams drift bimodal]
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass

import numpy as np
from machine import CALL, STREAMS, Machine, Stream
from settling import NEVER, RULES, SETTLING, Settling

from rung.measure import collect, median_interval, warm_up
from rung.measure.stats import trend
from rung.measure.steady import steady_from
from rung.measure.summary import percentile, samples_for

LOOKED = 500  # calls between two looks at the clock, as `rung bench` takes them


@dataclass(frozen=True)
class Result:
    drifts: bool  # then no interval of 95 % is claimed
    covered: bool
    bias: float
    seconds: float
    half: float


def bench(stream: Stream, noise: np.ndarray, seed: int) -> Result:
    """`rung bench` on a machine from cold; noise: `noise_of` the stream."""
    machine = Machine(stream, seed)
    process = machine.process()
    process.run()
    warm_up(lambda: process.run()[0], lambda: 1.0)
    cold = machine.load
    found = collect(lambda: process.run(LOOKED), precision=0.005, seconds=30, clock=lambda: machine.load)
    interval = median_interval(found.kept)
    window = np.linspace(cold + sum(found.samples[: found.begin or 0]) / 1e9, machine.load, 200)
    drift = stream.drift * (1 - np.exp(-window / 3))
    return Result(
        found.begin is None or trend(found.kept) is not None,
        interval.low <= process.factor * median_of(noise, drift) <= interval.high,
        interval.value / (process.factor * median_of(noise, np.array([stream.drift]))) - 1,
        machine.load - cold,
        (interval.high - interval.low) / 2 / interval.value,
    )


def noise_of(stream: Stream) -> np.ndarray:
    """The logarithms, in order, of how much longer than CALL warm calls take without drift: 200,000 of them."""
    random = np.random.default_rng(0)
    n = 200_000
    log = random.normal(0, math.hypot(stream.jitter, stream.wander), n) + stream.clocks * (random.random(n) < 0.5)
    log += np.where(random.random(n) < stream.spikes, np.log1p(random.exponential(stream.spike, n)), 0)
    if stream.clocks > 4 * stream.jitter:  # nothing lies between two clocks: the middle stands for the median
        log = np.array([stream.clocks / 2])
    return np.sort(log)


def median_of(noise: np.ndarray, drift: np.ndarray) -> float:
    """The median, ns, of the calls of a stretch of time over which the drift was this: of all their times together."""
    low, high = float(noise[0] + drift.min()), float(noise[-1] + drift.max())
    while high - low > 1e-7:
        middle = (low + high) / 2
        below = np.searchsorted(noise, middle - drift).mean() / len(noise)
        low, high = (middle, high) if below < 0.5 else (low, middle)
    return CALL * math.exp(low)


def median_table(trials: int, seed: int, streams: list[str]) -> None:
    print("\n### The median and its interval\n")
    print(
        "| | said to drift: no interval of 95 % is claimed | it covers, of the others | of all | bias against the warm state "
        "| half-width, median | seconds, median / 95 % below |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in streams:
        stream = STREAMS[name]
        noise = noise_of(stream)
        runs = [bench(stream, noise, seed * 10**6 + k) for k in range(trials)]
        seconds = [r.seconds for r in runs]
        claimed = [r.covered for r in runs if not r.drifts]
        print(
            f"| {name} | {1 - len(claimed) / trials:.1%} | {f'{statistics.fmean(claimed):.1%}' if claimed else '–'} "
            f"| {statistics.fmean(r.covered for r in runs):.1%} | {statistics.fmean(r.bias for r in runs):+.2%} "
            f"| {statistics.median(r.half for r in runs):.2%} "
            f"| {statistics.median(seconds):.1f} / {statistics.quantiles(seconds, n=20)[-1]:.1f} |",
            flush=True,
        )


def warm_table(trials: int, seed: int) -> None:
    print("\n### Where it is warm, on 600 calls\n")
    print(
        f"| | {' | '.join(f'{n}: found within 5 %' for n in SETTLING)} | {' | '.join(f'{n}: bias' for n in SETTLING)} |"
    )
    print(f"|---|{'---|' * 2 * len(SETTLING)}")
    for rule, found in {**RULES, "**rung**": steady_from}.items():
        right, bias = [], []
        for kind in SETTLING.values():
            streams = [kind(np.random.default_rng(seed * 10**6 + k)) for k in range(trials)]
            begins = [found(s.times.tolist()) for s in streams]
            right.append(f"{statistics.fmean(_near(b, s) for b, s in zip(begins, streams, strict=True)):.0%}")
            kept = [
                np.median(s.times[b : b + 200]) / 1e6 - 1 for b, s in zip(begins, streams, strict=True) if b is not None
            ]
            bias.append(f"{statistics.fmean(kept):+.1%}" if kept else "refused")
        print(f"| {rule} | {' | '.join(right)} | {' | '.join(bias)} |", flush=True)
    print("\n### Streams that never settle: accepted, on 600 calls and on 6,000\n")
    print(f"| | {' | '.join(f'{n}, {k}' for n in NEVER for k in (600, 6000))} |\n|---|{'---|' * 2 * len(NEVER)}")
    for rule, found in {**RULES, "**rung**": steady_from}.items():
        cells = []
        for kind in NEVER.values():
            for calls in (600, 6000):
                streams = [kind(np.random.default_rng(seed * 10**6 + k), calls) for k in range(trials)]
                cells.append(f"{statistics.fmean(found(s.times.tolist()) is not None for s in streams):.0%}")
        print(f"| {rule} | {' | '.join(cells)} |", flush=True)


def _near(begin: int | None, stream: Settling) -> bool:
    return begin is not None and abs(begin - stream.true) <= 0.05 * len(stream.times)


def percentile_table(trials: int, seed: int) -> None:
    """How often the true p99 lies above everything that was seen, with n samples."""
    print(
        "\n### When a p99 may be printed\n\n| samples | printed | the true p99 lies above all but one of them |\n|---|---|---|"
    )
    random = np.random.default_rng(seed)
    for n in (100, 300, samples_for(0.99) - 1, samples_for(0.99), 2000):
        low = statistics.fmean((random.random(n) > 0.99).sum() <= 1 for _ in range(50 * trials))
        said = percentile(random.random(n).tolist(), 0.99)
        print(f"| {n} | {'yes' if said else 'no'} | {low:.2%} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument(
        "--streams", nargs="*", default=list(STREAMS), choices=STREAMS, help="of the median's table; only it, then"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    median_table(options.trials, options.seed, options.streams)
    if options.streams == list(STREAMS):
        percentile_table(options.trials, options.seed)
        warm_table(min(100, options.trials), options.seed)


if __name__ == "__main__":
    main()
