"""A roofline as a picture: FLOP a byte across, TFLOP/s up, both on log scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rung.report import units
from rung.report.svg import dot, line, svg, text

_TOP, _PLOT, _BELOW = 30.0, 360.0, 44.0  # pixels
_LEFT, _RIGHT = 7.0, 1.0  # percent
_SHOWN = 0.95  # of the dots' time has a place on the axes: tiny operators would stretch them over many decades
_LINE = 18.0  # pixels that a roof's name needs
LEVELS = {"HBM": "hbm", "Infinity Cache": "cache", "L2": "l2", "L1": "l1", "LDS": "lds"}  # roof → class of its colour


class Point(NamedTuple):
    """A kernel, or an operator, at one level of memory: FLOP a byte, TFLOP/s; share: of the time of all. gap: how far it is from its
    roof, in words. css: a class beside that of its level."""

    kernel: str
    level: str
    intensity: float
    tflop_per_s: float
    share: float
    gap: str = ""
    css: str = ""


class Roof(NamedTuple):
    """slope: of a level of memory, in TB/s; else flat, in TFLOP/s. measured: what a benchmark reached, not a data sheet."""

    name: str
    height: float
    slope: bool
    measured: bool = False


class Scale(NamedTuple):
    """From FLOP a byte and TFLOP/s to places, for the decades low to high of each."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, intensity: float) -> float:
        return _LEFT + (100 - _LEFT - _RIGHT) * (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])

    def holds(self, point: Point) -> bool:
        low, high = 10 ** self.x[0], 10 ** self.x[1]
        return low <= point.intensity <= high and 10 ** self.y[0] <= point.tflop_per_s <= 10 ** self.y[1]

    def of(self, point: Point) -> tuple[float, float]:
        return self.across(point.intensity), self.up(point.tflop_per_s)

    def up(self, rate: float) -> float:
        return _TOP + _PLOT * (1 - (math.log10(rate) - self.y[0]) / (self.y[1] - self.y[0]))


def roofline(points: Sequence[Point], roofs: Sequence[Roof], links: Sequence[tuple[Point, Point]] = ()) -> str:
    """The picture; "" without a kernel that computes. The axes hold 95 % of the dots' time, and the picture counts the dots beyond.
    links: pairs of points with a line from the first to the second."""
    if not points:
        return ""
    scale = _scale(points, roofs)
    body = _grid(scale)
    flat = [roof.height for roof in roofs if not roof.slope and not roof.measured]
    for roof in roofs:
        if roof.slope:
            body += _sloped(roof, scale, max(flat, default=10 ** scale.y[1]))
        else:
            body += _flat(roof, roofs, scale)
    shown = [point for point in points if scale.holds(point)]
    for a, b in links:
        if scale.holds(a) and scale.holds(b):
            body.append(line(*scale.of(a), *scale.of(b), "moved"))
    for point in sorted(shown, key=lambda point: -point.share):
        tip = f"{point.kernel}: {units.digits(point.tflop_per_s)} TFLOP/s, {units.digits(point.intensity)} FLOP a byte of {point.level}, {point.share:.0%} of the time"  # fmt: skip
        tip += f", {point.gap}" if point.gap else ""
        radius = 3 + 12 * math.sqrt(point.share)
        css = f"p-{LEVELS[point.level]} {point.css}".rstrip()
        body.append(dot(*scale.of(point), round(radius, 1), css, tip))
    body += _names([roof for roof in roofs if not roof.slope and not roof.measured], scale)  # over the dots
    beyond = [point for point in points if not scale.holds(point)]
    if beyond:
        share = sum(point.share for point in beyond)
        said = f"beyond the axes: {len(beyond)} dot{'s' if len(beyond) > 1 else ''}, {_little(share)} of the time"
        body.append(text(said, 100 - _RIGHT, 12, "tick", "end"))
    return svg(_TOP + _PLOT + _BELOW, "roofline", "Roofline: FLOP a byte across, TFLOP/s up", body)


def _little(share: float) -> str:
    return units.percent(round(share, 3)) if share >= 0.001 else "under 0.1%"


def _largest(points: Sequence[Point]) -> list[Point]:
    """Those that have most of the time of all."""
    enough, taken = _SHOWN * sum(point.share for point in points), 0.0
    found: list[Point] = []
    for point in sorted(points, key=lambda point: -point.share):
        if found and taken >= enough:
            break
        found.append(point)
        taken += point.share
    return found


def _scale(points: Sequence[Point], roofs: Sequence[Roof]) -> Scale:
    points = _largest(points)
    flat = [roof.height for roof in roofs if not roof.slope]
    ridges = [height / roof.height for roof in roofs if roof.slope for height in flat]
    across = [point.intensity for point in points] + ridges
    up = [point.tflop_per_s for point in points] + flat
    return Scale((_floor(min(across) / 1.5), _ceil(max(across) * 2)), (_floor(min(up) / 1.5), _ceil(max(up) * 1.5)))


def _floor(value: float) -> float:
    return float(math.floor(math.log10(value)))


def _ceil(value: float) -> float:
    return float(math.ceil(math.log10(value)))


def _grid(scale: Scale) -> list[str]:
    bottom, body = _TOP + _PLOT, []
    for decade in range(int(scale.x[0]), int(scale.x[1]) + 1):
        x = scale.across(10.0**decade)
        body.append(line(x, _TOP, x, bottom, "grid"))
        body.append(text(f"{10.0**decade:g}", x, bottom + 16, "tick", "middle"))
    for decade in range(int(scale.y[0]), int(scale.y[1]) + 1):
        y = scale.up(10.0**decade)
        body.append(line(_LEFT, y, 100 - _RIGHT, y, "grid"))
        body.append(text(f"{10.0**decade:g}", _LEFT - 1, y + 4, "tick", "end"))
    body.append(text("FLOP a byte", 50, bottom + 36, "tick", "middle"))
    body.append(text("TFLOP/s", 0, 12, "tick"))
    return body


def _sloped(roof: Roof, scale: Scale, ceiling: float) -> list[str]:
    """From the left or lower edge to the highest arithmetic roof."""
    begin = max(10 ** scale.x[0], 10 ** scale.y[0] / roof.height)
    end = min(10 ** scale.x[1], ceiling / roof.height)
    if begin >= end:
        return []
    css = f"roof r-{LEVELS[roof.name]}" + (" measured" if roof.measured else "")
    places = scale.across(begin), scale.up(begin * roof.height), scale.across(end), scale.up(end * roof.height)
    return [line(*places, css)]


def _flat(roof: Roof, roofs: Sequence[Roof], scale: Scale) -> list[str]:
    """From the steepest level of memory to the right edge."""
    steepest = max((other.height for other in roofs if other.slope), default=0.0)
    begin = max(10 ** scale.x[0], roof.height / steepest) if steepest else 10 ** scale.x[0]
    y = scale.up(roof.height)
    return [line(scale.across(begin), y, 100 - _RIGHT, y, "roof flat" + (" measured" if roof.measured else ""))]


def _names(roofs: Sequence[Roof], scale: Scale) -> list[str]:
    """A name over each roof's right end; those of roofs close to each other stand together over the highest."""
    groups: list[list[Roof]] = []
    for roof in sorted(roofs, key=lambda roof: -roof.height):
        if groups and scale.up(roof.height) - scale.up(groups[-1][-1].height) < _LINE:
            groups[-1].append(roof)
        else:
            groups.append([roof])
    return [
        text(
            ", ".join(f"{roof.name} {units.digits(roof.height)}" for roof in group),
            100 - _RIGHT,
            scale.up(group[0].height) - 5,
            "name",
            "end",
        )
        for group in groups
    ]
