"""Which of several sides is the fastest? Every pair is judged, and the more pairs there are, the more each must show.

Holm's procedure (1979) keeps the chance of any false verdict among all pairs within what one look may spend: the
strongest of m pairs is tested at a m-th of it, the next at a (m - 1)-th, and so on until one fails.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rung.measure.compare import Answer, Looks, exponential, planned
from rung.measure.stats import STUDENT, Interval, Method


@dataclass(frozen=True)
class Pair:
    """b against a. speedup: time of a over time of b, with its interval at the confidence at which Holm's procedure
    tested this pair; answer: what b is (faster, slower, same within the margin, undecided)."""

    a: str
    b: str
    answer: Answer
    speedup: Interval
    confidence: float


@dataclass(frozen=True)
class Ranking:
    """ranks: one more than the number of sides that were shown to be faster, so sides that could not be told apart
    may share one. confidence: that no pair's verdict is wrong; final: no further look is planned; cut: it was made
    to end before every pair was decided."""

    ranks: dict[str, int]
    pairs: tuple[Pair, ...]
    restarts: int
    confidence: float
    margin: float | None
    final: bool
    cut: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rank(
    ratios: Mapping[tuple[str, str], Sequence[float]],
    *,
    looks: Looks,
    margin: float | None = None,
    last: bool = False,
    method: Method = STUDENT,
) -> Ranking | None:
    """The ranking at a planned look, or None between looks.

    ratios: of every pair (a, b), log(time of a / time of b), one a restart, positive where b is faster. margin,
    last: as in `rung.measure.decide`.
    """
    n = len(next(iter(ratios.values())))
    spent = planned(n, looks, last)
    if spent is None:
        return None
    differ = {
        pair: min(1.0, 2 * min(method.above(x, 0.0), method.above([-v for v in x], 0.0))) for pair, x in ratios.items()
    }
    levels = _holm(differ, spent)
    alike = {}
    if margin is not None:
        edge = math.log1p(margin)
        alike = {pair: max(method.above(x, -edge), method.above([-v for v in x], -edge)) for pair, x in ratios.items()}
    same = _holm(alike, spent)
    pairs = []
    for pair, x in ratios.items():
        logs = method.interval(x, 1 - levels[pair])
        answer: Answer = "undecided"
        if alike and alike[pair] < same[pair]:
            answer = "same"
        elif differ[pair] < levels[pair]:
            answer = "faster" if logs.value > 0 else "slower"
        pairs.append(Pair(*pair, answer, exponential(logs), 1 - levels[pair]))
    names = dict.fromkeys(name for pair in ratios for name in pair)
    ranks = {name: 1 + sum(_beats(p, name) for p in pairs) for name in names}
    undecided = any(p.answer == "undecided" for p in pairs)
    through = n >= looks[-1][0]
    final = last or through or not undecided
    return Ranking(ranks, tuple(pairs), n, 1 - spent, margin, final, last and undecided and not through)


def undecide(ranking: Ranking, wrong: Collection[tuple[str, str]]) -> Ranking:
    """The ranking without the answers of some pairs (a, b)."""
    pairs = tuple(replace(p, answer="undecided") if (p.a, p.b) in wrong else p for p in ranking.pairs)
    ranks = {name: 1 + sum(_beats(p, name) for p in pairs) for name in ranking.ranks}
    return replace(ranking, pairs=pairs, ranks=ranks)


def _beats(pair: Pair, name: str) -> bool:
    """Whether the other side of a pair was shown to be faster than `name`."""
    return (pair.a == name and pair.answer == "faster") or (pair.b == name and pair.answer == "slower")


def _holm(p: Mapping[tuple[str, str], float], spent: float) -> dict[tuple[str, str], float]:
    """The level at which each pair is tested; what comes after the first that fails is held to that one's level."""
    levels, level, failed = {}, 0.0, False
    for k, pair in enumerate(sorted(p, key=p.__getitem__)):
        if not failed:
            level = spent / (len(p) - k)
            failed = p[pair] >= level
        levels[pair] = level
    return levels
