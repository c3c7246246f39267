"""A forest plot: of each comparison the ratio with its interval, and the ratio of each restart that it rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import UnsetType

from rung.report import units
from rung.report.svg import escaped, line, positive, positives, round_values, svg, text

Restarts = Sequence[Mapping[str, Sequence[float]]] | UnsetType | None  # of each its samples by side, ns a step

_ROW, _AXIS = 46.0, 34.0  # pixels
_LEFT, _WIDE = 3.0, 94.0  # percent
_WIDEST = 0.6  # so much of the span of all values an interval may stretch the scale beyond them, on each side


class Effect(NamedTuple):
    """A comparison: the ratio of times with its interval, None where there is none, and that of each restart. css: kept or tried."""

    label: str
    value: float
    low: float | None
    high: float | None
    restarts: Sequence[float]
    css: str


def effect(
    label: str, estimate: units.Estimate | None, restarts: Sequence[float] = (), css: str = "kept"
) -> Effect | None:
    """None where the ratio is not known."""
    value = positive(estimate.value) if estimate else None
    if estimate is None or value is None:
        return None
    return Effect(label, value, positive(estimate.low), positive(estimate.high), restarts, css)


def ratios(restarts: Restarts, a: str, b: str) -> list[float]:
    """Of each restart the median of side a's samples over that of side b's; above 1 where b is faster."""
    found = []
    for restart in restarts or ():
        sides = [positives(restart.get(name, ())) for name in (a, b)]
        if all(sides):
            found.append(statistics.median(sides[0]) / statistics.median(sides[1]))
    return found


def forest(effects: Sequence[Effect], label: str) -> str:
    """The picture; "" without a comparison."""
    if not effects:
        return ""
    low, high = _range(effects)
    reach = math.log(high / low)

    def x(ratio: float) -> float:
        return _LEFT + _WIDE * min(max(math.log(ratio / low) / reach, 0.0), 1.0)

    bottom = _ROW * len(effects)
    body = []
    for tick in round_values(low, high, high / low > 3):
        body += [line(x(tick), bottom, x(tick), bottom + 4, "axis"), text(f"{tick:.6g}×", x(tick), bottom + 17, "tick", "middle")]  # fmt: skip
    body.append(line(0, bottom, 100, bottom, "axis"))
    body += [text("← slower", 0, bottom + 31, "tick"), text("faster →", 100, bottom + 31, "tick", "end")]
    for place, row in enumerate(effects):
        y = place * _ROW + 30
        said = units.interval(row)
        body.append(line(x(1), y - 9, x(1), y + 9, "reference"))  # not through the labels
        drawn = [text(row.label, 0, y - 14, "name"), text(said, 100, y - 14, "tick", "end")]
        if row.low is not None and row.high is not None:
            drawn.append(line(x(row.low), y, x(row.high), y, "interval"))
            drawn += [_head(x(row.low), y, left=True)] if row.low < low * 0.999 else []
            drawn += [_head(x(row.high), y, left=False)] if row.high > high * 1.001 else []
        drawn += [
            f'<circle cx="{x(r):.2f}%" cy="{y:.1f}" r="3"><title>restart {k}: {escaped(units.ratio(r))}</title></circle>'
            for k, r in enumerate(row.restarts, 1)
        ]
        drawn.append(
            f'<svg x="{x(row.value):.2f}%" y="{y:.1f}" overflow="visible"><path class="estimate" d="M-6 0L0 -6L6 0L0 6Z"/></svg>'
        )
        body.append(f'<g class="{row.css}">{"".join(drawn)}</g>')
    return svg(bottom + _AXIS, "forest", label, body)


def _head(x: float, y: float, left: bool) -> str:
    """The interval goes on beyond the picture."""
    path = "M6 -4L0 0L6 4" if left else "M-6 -4L0 0L-6 4"
    return f'<svg x="{x:.2f}%" y="{y:.1f}" overflow="visible"><path class="interval" d="{path}"/></svg>'


def _range(effects: Sequence[Effect]) -> tuple[float, float]:
    """All ratios and 1; an interval may stretch it so far and not farther: one of a single restart has no end."""
    inside = [1.0, *(ratio for row in effects for ratio in (row.value, *row.restarts))]
    low, high = math.log(min(inside)), math.log(max(inside))
    room = max(_WIDEST * (high - low), 0.02)
    ends = [math.log(end) for row in effects for end in (row.low, row.high) if end is not None]
    low, high = max(low - room, min([low, *ends])), min(high + room, max([high, *ends]))
    margin = 0.04 * (high - low) or 0.01
    return math.exp(low - margin), math.exp(high + margin)


def of_sides(
    names: Mapping[str, str], restarts: Restarts, pairs: Sequence[tuple[str, str, units.Estimate]]
) -> list[Effect]:
    """The comparisons of pairs (a, b, speedup of b over a); names: of a side what a reader knows it by."""
    found = [effect(f"{names[b]} against {names[a]}", speedup, ratios(restarts, a, b)) for a, b, speedup in pairs]
    return [row for row in found if row is not None]
