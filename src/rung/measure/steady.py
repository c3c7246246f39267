"""Where warm-up ends, found by change points and not assumed.

The rule is that of Barrett et al. 2017: split the stream by PELT (Killick et al. 2012) with a normal
mean-and-variance cost and a penalty of 15 ln n; the last segment is the steady state, together with the
earlier ones that look like it; a stream that still changes in its last quarter is not steady.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

MINIMUM_RUNS = 3
MOST_RUNS = 400
TOLERANCE = 0.01  # segments whose means differ by less than this are the same state


def change_points(samples: Sequence[float]) -> list[int]:
    """The starts of the segments of a stream, the first being 0."""
    x = np.asarray(samples, dtype=float)
    n = len(x)
    s1, s2 = np.concatenate([[0.0], x.cumsum()]), np.concatenate([[0.0], (x * x).cumsum()])
    # A floor on the variance keeps a run of equal readings from having an infinite likelihood.
    floor = (1e-3 * abs(float(np.median(x)))) ** 2 + 1e-30
    penalty = 15 * math.log(max(n, 2))
    shortest = 3

    def cost(starts: np.ndarray, end: int) -> np.ndarray:
        length = end - starts
        mean = (s1[end] - s1[starts]) / length
        variance = np.maximum((s2[end] - s2[starts]) / length - mean**2, floor)
        return length * (np.log(2 * math.pi * variance) + 1)

    best = np.full(n + 1, math.inf)
    best[0] = -penalty
    before = np.zeros(n + 1, dtype=int)
    candidates = [0]
    for end in range(shortest, n + 1):
        starts = np.array([c for c in candidates if end - c >= shortest])
        totals = best[starts] + cost(starts, end) + penalty
        k = int(totals.argmin())
        best[end], before[end] = totals[k], starts[k]
        keep = set(starts[totals - penalty <= best[end]].tolist())
        candidates = [c for c in candidates if c in keep or end - c < shortest] + [end - shortest + 1]
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
    steady = None
    while (left() > 0 and len(samples) < MOST_RUNS) or len(samples) < MINIMUM_RUNS:
        samples.append(run())
        if len(samples) >= 8 and (steady := steady_from(samples)) is not None and len(samples) >= 2 * steady:
            break
    return samples, steady


def steady_from(samples: Sequence[float]) -> int | None:
    """The index from which a stream is steady, at least 3; None where it is not, or is too short to say."""
    x = np.asarray(samples, dtype=float)
    n = len(x)
    if n < 2 * MINIMUM_RUNS:
        return None
    # Spikes are no change of state: clip what lies far outside of the central 80 %.
    low, middle, high = np.percentile(x, [10, 50, 90])
    clipped = np.clip(x, middle - 3 * (high - low), middle + 3 * (high - low)) if n >= 10 else x
    starts = change_points(clipped.tolist())
    ends = [*starts[1:], n]
    last = clipped[starts[-1] :]
    begin = starts[-1]
    for start, end in zip(reversed(starts[:-1]), reversed(ends[:-1]), strict=True):
        segment = clipped[start:end]
        margin = max(TOLERANCE * abs(last.mean()), 2 * last.std() / math.sqrt(len(last)))
        if abs(segment.mean() - last.mean()) > margin:
            break
        begin = start
    if begin > 0.75 * n:
        return None
    return max(begin, MINIMUM_RUNS)
