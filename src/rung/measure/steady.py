"""Where warm-up ends, found by change points and not assumed.

The stream is split as by Barrett et al. 2017: PELT (Killick et al. 2012) with a normal mean-and-variance cost and a
penalty of 15 ln n. A machine that switches between two clocks changes for ever and is steady all the same, so what
counts is whether the stream settles: whether the states after a change point come again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from rung.measure.stats import effective_count

MINIMUM_RUNS = 3
TELLING = 2 * MINIMUM_RUNS  # samples, below which nobody can tell whether they are steady
MOST_RUNS = 400
TOLERANCE = 0.01  # segments whose means differ by less than this are the same state
DRIFT = 0.005  # what moves by less than this from end to end does not drift
# Independent samples that a settled stream is worth, and below which nobody can tell how correlated they are.
INDEPENDENT = 30
LONG = 40
SHORTEST = 3  # points between two change points: the end of a decay may hide in so many
MOST_POINTS = 200  # a longer stream is looked at through the medians of so many groups, at least


def change_points(samples: Sequence[float]) -> list[int]:
    """The starts of the segments of a stream, the first being 0."""
    x = np.asarray(samples, dtype=float)
    n = len(x)
    s1, s2 = np.concatenate([[0.0], x.cumsum()]), np.concatenate([[0.0], (x * x).cumsum()])
    # A floor on the variance keeps a run of equal readings from having an infinite likelihood.
    floor = (1e-3 * abs(float(np.median(x)))) ** 2 + 1e-30
    penalty = 15 * math.log(max(n, 2))

    def cost(starts: np.ndarray, end: int) -> np.ndarray:
        length = end - starts
        mean = (s1[end] - s1[starts]) / length
        variance = np.maximum((s2[end] - s2[starts]) / length - mean**2, floor)
        found: np.ndarray = length * (np.log(2 * math.pi * variance) + 1)
        return found

    best = np.full(n + 1, math.inf)
    best[0] = -penalty
    before = np.zeros(n + 1, dtype=int)
    candidates = [0]
    for end in range(SHORTEST, n + 1):
        starts = np.array([c for c in candidates if end - c >= SHORTEST])
        totals = best[starts] + cost(starts, end) + penalty
        k = int(totals.argmin())
        best[end], before[end] = totals[k], starts[k]
        keep = set(starts[totals - penalty <= best[end]].tolist())
        candidates = [c for c in candidates if c in keep or end - c < SHORTEST] + [end - SHORTEST + 1]
    points, end = [], n
    while end > 0:
        end = int(before[end])
        points.append(end)
    return points[::-1]


def warm_up(run: Callable[[], int], left: Callable[[], float]) -> tuple[list[int], int | None]:
    """Runs until steady, or until `left()` seconds are gone, but never fewer than MINIMUM_RUNS times.

    run: one run, returning its nanoseconds. Returns all samples and where the steady state begins, if it does;
    as many steady runs as there were unsteady ones are asked for, at least 8 in all and 400 at most.
    """
    samples: list[int] = []
    look = 8
    while True:
        samples.append(run())
        over = (left() <= 0 or len(samples) >= MOST_RUNS) and len(samples) >= MINIMUM_RUNS
        if over or len(samples) >= look:
            steady = steady_from(samples)
            if over or (steady is not None and len(samples) >= 2 * steady):
                return samples, steady
            look = len(samples) + 1 + len(samples) // 10  # to look takes time, too


def steady_from(samples: Sequence[float]) -> int | None:
    """The index from which a stream is steady, at least 3; None where it is not, or is too short to say.

    A long stream is steady from the first change point on after which it settles, and which begins with nothing that
    the rest does not show again, and from as much later as no change point could be seen; at most half of it may be
    warm-up. Of a short one (40 samples) only its last levels can be compared.
    """
    x = np.asarray(samples, dtype=float)
    n = len(x)
    if n < TELLING:
        return None
    group = -(-n // MOST_POINTS) if n > 2 * MOST_POINTS else 1
    skipped = n % group
    y = np.median(x[skipped:].reshape(-1, group), axis=1)
    # Spikes are no change of state: clip what lies far outside of the central 80 %.
    low, middle, high = np.percentile(y, [10, 50, 90])
    y = np.clip(y, middle - 3 * (high - low), middle + 3 * (high - low)) if len(y) >= 10 else y
    starts = change_points(y.tolist())
    begin = _first_settled(y, starts) if len(y) >= LONG else _like_the_last(y, starts)
    return None if begin is None else max(begin and skipped + begin * group, MINIMUM_RUNS)


def _first_settled(y: np.ndarray, starts: list[int]) -> int | None:
    for start, end in zip(starts, [*starts[1:], len(y)], strict=True):
        if start > len(y) / 2:
            return None
        rest = y[end:] if end < len(y) else y[start:]
        low, middle, high = np.percentile(rest, [5, 50, 95])
        edge = DRIFT * middle
        if low - edge <= y[start:end].mean() <= high + edge and settled(y[start:]):
            return start and start + SHORTEST
    return None


def settled(y: np.ndarray) -> bool:
    """Whether a stream varies around one level: it is worth thirty independent samples, because its states come
    again and again (a trend, a late step and a random walk are worth a few), or it hardly moves at all."""
    low, middle, high = np.percentile(y, [5, 50, 95])
    return bool(effective_count(y) >= min(INDEPENDENT, len(y) / 4) or high - low < DRIFT * middle)


def _like_the_last(y: np.ndarray, starts: list[int]) -> int | None:
    """The start of the last segment and of those before it that look like it (Barrett et al. 2017)."""
    ends = [*starts[1:], len(y)]
    last = y[starts[-1] :]
    begin = starts[-1]
    for start, end in zip(reversed(starts[:-1]), reversed(ends[:-1]), strict=True):
        margin = max(TOLERANCE * abs(last.mean()), 2 * last.std() / math.sqrt(len(last)))
        if abs(y[start:end].mean() - last.mean()) > margin:
            break
        begin = start
    return begin if begin <= 0.75 * len(y) else None
