"""Streams that warm up to a known point, streams that never settle, and how others find where to begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CALLS, CALL = 600, 1e6  # ns


@dataclass(frozen=True)
class Settling:
    """times: nanoseconds; true: the first call of the steady state."""

    times: np.ndarray
    true: int


Kind = Callable[..., Settling]


def _made(random: np.random.Generator, log: np.ndarray, true: int) -> Settling:
    """Jitter of 0.5 %, and one call in a hundred longer by an exponential of mean 30 %."""
    n = len(log)
    spikes = np.where(random.random(n) < 0.01, np.log1p(random.exponential(0.3, n)), 0)
    return Settling(CALL * np.exp(log + random.normal(0, 0.005, n) + spikes), true)


def flat(random: np.random.Generator, n: int = CALLS) -> Settling:
    return _made(random, np.zeros(n), 0)


def ramp(random: np.random.Generator, n: int = CALLS) -> Settling:
    """30 % slower, and evenly less so, until call 123."""
    return _made(random, 0.3 * np.clip(1 - np.arange(n) / 123, 0, None), 123)


def step(random: np.random.Generator, n: int = CALLS) -> Settling:
    """10 % slower until call 80."""
    return _made(random, 0.1 * (np.arange(n) < 80), 80)


def tiers(random: np.random.Generator, n: int = CALLS) -> Settling:
    """Interpreted, then compiled, then compiled well: 40 %, 8 %, 0, from calls 60 and 150 on."""
    k = np.arange(n)
    return _made(random, np.where(k < 60, 0.4, np.where(k < 150, 0.08, 0.0)), 150)


def throttles(random: np.random.Generator, n: int = CALLS) -> Settling:
    """15 % slower from some point in the second half on."""
    return _made(random, 0.15 * (np.arange(n) > random.uniform(0.55, 0.95) * n), n)


def saws(random: np.random.Generator, n: int = CALLS) -> Settling:
    """Heats up, drops its clock, cools down: a saw-tooth of 12 % with two or three teeth."""
    return _made(random, 0.12 * ((np.arange(n) / n * random.uniform(2, 3) + random.random()) % 1), n)


def grows(random: np.random.Generator, n: int = CALLS) -> Settling:
    """Slower from call to call, by 12 % in all."""
    return _made(random, 0.12 * np.arange(n) / n, n)


def wanders(random: np.random.Generator, n: int = CALLS) -> Settling:
    """A random walk that ends 10 % (one standard deviation) from where it began."""
    return _made(random, np.cumsum(random.normal(0, 0.1 / np.sqrt(n), n)), n)


SETTLING: dict[str, Kind] = {"flat": flat, "ramp": ramp, "step": step, "tiers": tiers}
NEVER: dict[str, Kind] = {"throttles": throttles, "saw-tooth": saws, "grows": grows, "wanders": wanders}


def pyperf(times: Sequence[float]) -> int | None:
    """Windows of 40 values that are alike: neighbouring windows by quartiles, mean and spread, as pyperf calibrates."""
    x = np.asarray(times)
    for k in range(min(300, len(x) - 80)):
        a, b = x[k : k + 40], x[k + 40 : k + 80]
        qa, qb = np.percentile(a, [25, 50, 75]), np.percentile(b, [25, 50, 75])
        spread = [np.median(np.abs(w - q[1])) for w, q in ((a, qa), (b, qb))]
        alike = (
            a[0] <= qa[2] + 1.5 * (qa[2] - qa[0])
            and -0.5 <= b.mean() / a.mean() - 1 <= 0.1
            and abs(spread[1] / spread[0] - 1) <= 0.1
            and all(abs(qb[i] / qa[i] - 1) <= 0.05 for i in (0, 2))
        )
        if alike:
            return k
    return None


def mser5(times: Sequence[float]) -> int | None:
    """White's rule on means of five: leave out what makes the standard error of the rest smallest, at most half."""
    y = np.asarray(times)[: len(times) // 5 * 5].reshape(-1, 5).mean(1)
    return 5 * int(np.argmin([y[k:].var() / (len(y) - k) for k in range(len(y) // 2)]))


RULES: dict[str, Callable[[Sequence[float]], int | None]] = {
    "none": lambda times: 0,
    "1 run (nvbench)": lambda times: 1,
    "25 ms (triton do_bench)": lambda times: 25,
    "pyperf": pyperf,
    "MSER-5": mser5,
}
