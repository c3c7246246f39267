"""The history of a measurement on the terminal: a chart with its changes of level, or a line each of many."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from rung.records.history import Changed, Point, Series, Trend
from rung.report import units
from rung.report.bench import BARS
from rung.report.benchmarks import difference_lines
from rung.report.history import figure, figure_interval, moment, what
from rung.report.svg import Axis, fitting, round_values

ROWS = 9
_MOST_DIFFERENCES = 6
# What a larger figure is called, and a smaller one.
WORDS = {"time": ("slower", "faster"), "memory": ("more", "less"), "speedup": ("higher", "lower")}
FEWEST = 8  # points, below which every order is too likely for 5 % of false alarms (measure/change_points.py)


def trend_lines(trend: Trend, width: int, charts: bool = True) -> list[str]:
    """Every series of a trend. charts: a chart each, else a line each."""
    if not charts:
        again = [series for series in trend.series if len(series.points) > 1]
        once = len(trend.series) - len(again)
        more = [f"measured once: {once} more; `rung runs list` shows them."] if once else []
        return [*(line for series in again for line in _line(series)), *more]
    lines: list[str] = []
    for series in trend.series:
        lines += ["", *_chart(series, width)] if lines else _chart(series, width)
    return lines


def heading(series: Series) -> str:
    """Such as "time of model.py:make (mode train), by rung bench on MI300X, node-1"."""
    machine = units.one_line(", ".join(filter(None, [series.device, series.host])))
    return f"{series.name} of {what(series)}, by rung {series.of} on {machine}"


def change_line(change: Changed, series: Series) -> str:
    """Such as "from entry 17 on, 2026-01-02 03:04: 2.75 ms → 2.90 ms, 5.4% slower (p = 0.001)"."""
    grew, shrank = WORDS.get(series.name, ("more", "less"))
    word = grew if change.change > 0 else shrank
    before, after = (figure(level, series.unit) for level in (change.before, change.after))
    when = moment(series.points[change.at].created)
    return f"from entry {change.entry} on, {when}: {before} → {after}, {units.percent(abs(change.change))} {word} (p = {change.p:.2g})"


def differences_of(change: Changed) -> list[str]:
    """What else changed there, a sentence each, the first few."""
    said = [units.one_line(line) for line in difference_lines(change.differs)]
    more = len(said) - _MOST_DIFFERENCES
    return said[:_MOST_DIFFERENCES] + ([f"and {more} more; --json has all"] if more > 0 else [])


def count_line(series: Series) -> str:
    """How many figures, the last one, and whether they are enough to tell a change."""
    count = len(series.points)
    last = figure_interval(series.points[-1], series.unit)
    few = f"; fewer than {FEWEST} tell no change of level" if count < FEWEST else "; no change of level"
    return f"{count} measurement{'s' if count > 1 else ''}, the last {last}{'' if series.changes else few}"


def axis_of(series: Series) -> Axis:
    """A scale for the figures, with room for a usual interval beyond them."""
    points = series.points
    axis = fitting([[point.value for point in points]])
    halves = [(p.high - p.low) / 2 for p in points if p.low is not None and p.high is not None]
    if axis.log or not halves:
        return axis
    room = statistics.median(halves)
    return replace(axis, low=max(axis.low - room, axis.low / 2), high=axis.high + min(room, axis.high))


def _line(series: Series) -> list[str]:
    values = [point.value for point in series.points]
    low, high = min(values), max(values)
    bars = "".join(BARS[round((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in values[-40:])
    lines = [heading(series), f"  {bars}  {count_line(series)}"]
    return lines + [f"  {change_line(change, series)}" for change in series.changes]


def _chart(series: Series, width: int) -> list[str]:
    points = series.points
    axis = axis_of(series)
    labels = _labels(axis, series.unit)
    margin = max(len(label) for label in labels.values())
    wide = max(10, min(width - margin - 3, 2 * len(points)))
    cells = _cells(points, series.changes, axis, wide)
    lines = [heading(series)]
    lines += [f"{labels.get(row, ''):>{margin}} ┤{''.join(cells[row]).rstrip()}" for row in range(ROWS)]
    first, last = moment(points[0].created)[:10], moment(points[-1].created)[:10]
    lines.append(f"{'':>{margin}} └{'─' * wide}")
    lines.append(f"{'':>{margin}}  {first}" + (f"{last:>{max(wide - 10, 12)}}" if last != first else ""))
    lines += [note] if (note := axis.note()) and series.unit == "ns" else []
    lines.append(count_line(series))
    for change in series.changes:
        lines += [change_line(change, series), *(f"  {said}" for said in differences_of(change))]
    return lines


def _cells(points: Sequence[Point], changes: Sequence[Changed], axis: Axis, wide: int) -> list[list[str]]:  # fmt: skip
    """Characters by row and column: the median of a column's points, its interval where it has one point, and each change."""
    cells = [[" "] * wide for _ in range(ROWS)]
    columns: dict[int, list[Point]] = {}
    for place, point in enumerate(points):
        columns.setdefault(_column(place, len(points), wide), []).append(point)
    for change in changes:
        x = max(0, _column(change.at, len(points), wide) - 1)
        for row in range(ROWS):
            cells[row][x] = "┆"
    for x, found in columns.items():
        if len(found) == 1 and found[0].low is not None and found[0].high is not None:
            for row in range(_row(found[0].high, axis), _row(found[0].low, axis) + 1):
                cells[row][x] = "│"
        cells[_row(statistics.median(point.value for point in found), axis)][x] = "•"
    return cells


def _column(place: int, count: int, wide: int) -> int:
    return place * wide // count


def _row(value: float, axis: Axis) -> int:
    return round((1 - axis.place(value)) * (ROWS - 1))


def _labels(axis: Axis, unit: str) -> dict[int, str]:
    """The text beside a row, of a few round values."""
    values = round_values(axis.low, axis.high, axis.log) or [axis.low, axis.high]
    return {_row(value, axis): tick(value, unit) for value in values}


def tick(value: float, unit: str) -> str:
    """A round value on a scale."""
    return units.round_duration(value, 6) if unit == "ns" else f"{value:.6g}×" if unit == "x" else figure(value, unit)
