"""Why a stream of times is noisy, in the words that a performance engineer would use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOISY = 0.10  # a standard deviation above this share of the mean is explained
GROWTH = 0.02


def explain(samples: Sequence[float], *, always: bool = False) -> list[str]:
    """Sentences on what makes the samples (nanoseconds, in order) differ; empty where they hardly do.

    always: explain below the 10 % as well.
    """
    x = np.asarray(samples, dtype=float)
    n = len(x)
    if n < 8 or not (always or x.std(ddof=1) > NOISY * x.mean()):
        return []
    return [text for text in (_spikes(x), _two_levels(x), _drift(x)) if text] or [
        f"the step times vary by {x.std(ddof=1) / x.mean():.0%} without a pattern, perhaps because of another process."
    ]


def grows(values: Sequence[float]) -> float | None:
    """By what share a quantity that should stay rises steadily (memory after each block), or None if it does not."""
    x = np.asarray(values, dtype=float)
    # A page given back now and then does not end a leak.
    if len(x) < 4 or x[0] <= 0 or bool((np.diff(x) < -0.1 * (x[-1] - x[0])).any()):
        return None
    # The first rise may be a pool that fills; a leak goes on in the second half.
    half = x[len(x) // 2]
    share = float(x[-1] / x[0] - 1)
    return share if share > GROWTH and x[-1] > half > x[0] else None


def _spikes(x: np.ndarray) -> str:
    middle = float(np.median(x))
    spread = 1.4826 * float(np.median(np.abs(x - middle)))
    far = x > middle + max(6 * spread, 0.2 * middle)
    if not far.any() or far.mean() > 0.1:
        return ""
    rest = x[~far]
    if rest.std(ddof=1) > 0.7 * x.std(ddof=1):
        return ""
    return (
        f"{int(far.sum())} of {len(x)} steps {'takes' if far.sum() == 1 else 'take up to'} {x.max() / middle:.1f}× the median and "
        f"{'causes' if far.sum() == 1 else 'cause'} most of the variation: "
        "interruptions, recompilations or garbage collection."
    )


def _two_levels(x: np.ndarray) -> str:
    """Two clusters by the best split of the sorted values (Otsu), told apart by Ashman's D > 2."""
    y = np.sort(x)
    n = len(y)
    sums, squares = np.cumsum(y), np.cumsum(y * y)
    k = np.arange(max(2, n // 10), n - max(2, n // 10))
    if not len(k):
        return ""
    left, right = sums[k - 1] / k, (sums[-1] - sums[k - 1]) / (n - k)
    inside = squares[-1] - k * left**2 - (n - k) * right**2
    best = int(inside.argmin())
    low, high = y[: k[best]], y[k[best] :]
    spread = float(np.sqrt((low.var() + high.var()) / 2))
    apart = float(high.mean() - low.mean())
    if apart < 0.02 * low.mean() or apart < 4 * spread:  # a uniform or normal stream splits at 3.5 at most
        return ""
    ratio = high.mean() / low.mean()
    apart_by = f"{ratio - 1:.0%} apart" if ratio < 3 else f"one {ratio:.3g}× the other"
    return (
        f"the times have two levels, {apart_by} ({len(low)} and {len(high)} steps): two clocks, two "
        "code paths, or two input shapes."
    )


def _drift(x: np.ndarray) -> str:
    quarter = max(2, len(x) // 4)
    first, last = float(np.median(x[:quarter])), float(np.median(x[-quarter:]))
    inner = 1.4826 * float(np.median(np.abs(np.diff(x)))) / np.sqrt(2)
    change = last / first - 1
    if abs(change) < 0.02 or abs(last - first) < 4 * inner / np.sqrt(quarter):
        return ""
    eighths = [float(np.median(part)) for part in np.array_split(x, 8)]
    if (max(eighths[-2:]) >= min(eighths[:2])) if change < 0 else (min(eighths[-2:]) <= max(eighths[:2])):
        return ""  # the two quarters overlap, as where the load of the machine comes and goes
    if change > 0:
        return f"the steps get slower, {change:+.0%} from the first quarter to the last: heat, throttling, other work on the machine, or a leak."
    return f"the steps still get faster, {change:+.0%} from the first quarter to the last: the warm-up was too short."
