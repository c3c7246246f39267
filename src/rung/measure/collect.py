"""How many samples are enough: until the stream is steady and its median is known, or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rung.measure.stats import effective_count, median_interval
from rung.measure.steady import INDEPENDENT, steady_from

AT_LEAST = 3.0  # seconds: a machine that changes its clock every few tenths of a second shows both of them
# Looking again and again until an interval is narrow finds one that is narrow by chance; so the one that stops the
# measurement is wider than the one that is reported, and each look comes after half as many samples more.
STOPPING = 0.998
GROWTH = 1.5


@dataclass(frozen=True)
class Collected:
    """begin: where the steady state begins in the samples (nanoseconds), None where there is none; reached: the 95 %
    interval of the steady samples' median lies within the precision asked for."""

    samples: list[float]
    begin: int | None
    reached: bool

    @property
    def kept(self) -> list[float]:
        return self.samples[self.begin or 0 :]


def collect(
    block: Callable[[], Sequence[float]],
    *,
    precision: float,
    seconds: float,
    at_least: int = 10,
    clock: Callable[[], float] = time.monotonic,
    into: list[float] | None = None,
) -> Collected:
    """Runs blocks, each returning nanoseconds a step, until the median is known to `precision` (a share of it), for at
    most `seconds` by the clock, and for at least `at_least` samples and three seconds where there is time for them.

    into: is filled as samples come, for who has to keep them when a block fails.
    """
    samples: list[float] = into if into is not None else []
    began = clock()
    look = 0.0
    while True:
        samples += block()
        spent = clock() - began
        over = spent >= seconds
        enough = len(samples) >= at_least and spent >= AT_LEAST and len(samples) >= look
        if not over and not enough:
            continue
        begin = steady_from(samples)
        kept = samples[begin or 0 :]
        # What is kept must be as long as what is asked for at least: a short end may show one clock of two.
        long = spent * len(kept) / len(samples) >= 0.9 * AT_LEAST
        if begin is not None and long and effective_count(kept) >= INDEPENDENT and _within(kept, precision, STOPPING):
            return Collected(samples, begin, True)
        if over:
            return Collected(samples, begin, begin is not None and len(kept) >= 10 and _within(kept, precision, 0.95))
        look = GROWTH * len(samples)


def _within(samples: Sequence[float], precision: float, confidence: float) -> bool:
    found = median_interval(samples, confidence)
    return found.high - found.low <= 2 * precision * found.value
