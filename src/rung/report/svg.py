"""Pieces of a picture as SVG text, and its scale.

Across, places are percentages, so a picture fits any width and its letters keep their size; down, they are pixels. Every text is escaped. A
scale for times fits a heavy tail: linear where that shows all, else logarithmic, else cut with a count of what was cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from rung.report import units

_LARGEST = 1e30


def text(content: str, x: float, y: float, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.2f}%" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escaped(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" class="{css}"/>'


def arrow(x: float, y: float, css: str, down: bool = False) -> str:
    """A head whose point is there; the inner svg carries the place, because a path knows no percentages."""
    back = -6 if down else 6
    return f'<svg x="{x:.2f}%" y="{y:.1f}" overflow="visible"><path d="M-4 {back}L0 0L4 {back}" class="{css}"/></svg>'


def dot(x: float, y: float, radius: float, css: str = "", title: str = "") -> str:
    named = f' class="{css}"' if css else ""
    tip = f"<title>{escaped(title)}</title>" if title else ""
    return f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="{radius}"{named}>{tip}</circle>'


def svg(height: float, css: str, label: str, body: Sequence[str]) -> str:
    inside = "\n".join(body)
    named = f'class="{css}" role="img" aria-label="{escaped(label)}"'
    return f'<svg {named} width="100%" height="{height:.0f}">\n{inside}\n</svg>'


def escaped(text: str) -> str:
    return escape(units.clean(text), quote=True)


def positive(value: Any) -> float | None:
    """A number that a scale has a place for. A damaged file may hold any, such as 1e308 seconds."""
    known = units.number(value)
    return known if known is not None and 1 / _LARGEST < known < _LARGEST else None


def positives(values: Sequence[float]) -> list[float]:
    """Those that a scale has a place for."""
    return [value for value in map(positive, values) if value is not None]


_FENCE = 4.0  # times the middle half's width: what is farther away is of the tail
_LEAST_SHARE = 0.08  # of a log scale for the middle half; with less, the samples would be one bar
_FEWEST, _MOST = 3, 7  # ticks


@dataclass(frozen=True)
class Axis:
    """low, high: ns, where it begins and ends. below, above: how many samples lie outside; least, most: the extreme ones."""

    low: float
    high: float
    log: bool
    below: int
    above: int
    least: float
    most: float

    def place(self, ns: float) -> float:
        """From 0 to 1; what lies outside is at the edge."""
        share = (self._scaled(ns) - self._scaled(self.low)) / (self._scaled(self.high) - self._scaled(self.low))
        return min(max(share, 0.0), 1.0)

    def edge(self, share: float) -> float:
        """The time at a place, in ns."""
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + (self.high - self.low) * share

    def holds(self, ns: float) -> bool:
        return self.low <= ns <= self.high

    def ticks(self) -> list[tuple[float, str]]:
        """(ns, its text) of the round times."""
        found = round_values(self.low, self.high, self.log)
        apart = min((b - a for a, b in pairwise(found)), default=self.high)
        significant = max(1, math.floor(math.log10(self.high / apart)) + 2)
        return [(ns, units.round_duration(ns, significant)) for ns in found]

    def note(self) -> str:
        """What a reader has to know of the scale, in sentences; "" of one that is linear and shows all."""
        said = ["The scale is logarithmic."] if self.log else []
        for many, word, extreme, edge in (
            (self.below, "faster", self.least, self.low),
            (self.above, "slower", self.most, self.high),
        ):
            if many:
                which = f"{units.count(many)} samples are {word}, up to" if many > 1 else f"1 sample is {word}:"
                said.append(f"The scale ends at {units.duration(edge)}: {which} {units.duration(extreme)}.")
        return " ".join(said)

    def _scaled(self, ns: float) -> float:
        return math.log(max(ns, self.low / 1e6)) if self.log else ns


def fitting(sides: Sequence[Sequence[float]]) -> Axis:
    """The axis for the samples of one or more sides, of which at least one has a sample. Samples: ns, above zero."""
    ordered = [sorted(side) for side in sides if side]
    least, most = min(side[0] for side in ordered), max(side[-1] for side in ordered)
    if most - least < 1e-9 * most:
        return Axis(least * 0.99, most * 1.01, False, 0, 0, least, most)
    quarters = [(side[len(side) // 4], side[(3 * len(side)) // 4]) for side in ordered]
    first, last = min(low for low, _ in quarters), max(high for _, high in quarters)
    fences = [(low - _reach(low, high), high + _reach(low, high)) for low, high in quarters]
    values = [ns for side in ordered for ns in side]
    lowest, highest = min(a for a, _ in fences), max(b for _, b in fences)
    inside = [ns for ns in values if lowest <= ns <= highest]
    low, high = min(inside), max(inside)
    if (low, high) == (least, most):
        return Axis(least, most, False, 0, 0, least, most)
    if high == low or math.log(last / first) >= _LEAST_SHARE * math.log(most / least):
        return Axis(least, most, True, 0, 0, least, most)
    return Axis(low, high, False, sum(ns < low for ns in values), sum(ns > high for ns in values), least, most)


def _reach(low: float, high: float) -> float:
    return _FENCE * max(high - low, 1e-4 * high)


def round_values(low: float, high: float, log: bool) -> list[float]:
    """A few round numbers from low to high."""
    if log and high / low > 8:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]
            if len(found) <= _MOST:
                break
        return found[:: max(1, -(-len(found) // _MOST))]
    unit = 10.0 ** math.floor(math.log10((high - low) / _FEWEST))
    step = next(m * unit for m in (10, 5, 2, 1) if m * unit <= (high - low) / _FEWEST)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
