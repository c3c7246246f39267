"""The samples of a measurement or of several sides: how they lie, and each in its turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rung.report import units
from rung.report.svg import Axis, fitting, line, positive, positives, svg, text

BINS, HIGH, MOST = 60, 150.0, 1500
COLOURS = 6  # classes s0 to s5; further sides begin anew
_TICK_BELOW = 16.0  # pixels
_LEFT = 11.0  # percent, for the times beside the samples over time


def drawable(sides: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The samples that a scale has a place for."""
    known = {name: positives(samples) for name, samples in sides.items()}
    return {name: samples for name, samples in known.items() if samples}


def colour(place: int) -> str:
    return f"s{place % COLOURS}"


def histogram(
    sides: Mapping[str, Sequence[float]], estimates: Mapping[str, units.Estimate], axis: Axis, discarded: int = 0
) -> str:
    """Bars of the kept samples, the sides over each other; the median of each as a line over its interval. estimates: of each side
    `value`, and `low` and `high` where there is an interval, in ns."""
    kept = {name: list(samples[discarded:]) or list(samples) for name, samples in sides.items()}
    counts = {name: _counts(samples, axis) for name, samples in kept.items()}
    highest = max((max(of_side) for of_side in counts.values()), default=0) or 1
    body = []
    for place, (name, of_side) in enumerate(counts.items()):
        bars = []
        for k, count in enumerate(of_side):
            if not count:
                continue
            height = max(2.0, (HIGH - 6 - 6 * len(counts)) * count / highest)  # a single sample of the tail can be seen
            tip = f"{units.duration(axis.edge(k / BINS))} to {units.duration(axis.edge((k + 1) / BINS))}: {count}"
            bars.append(
                f'<rect x="{100 * k / BINS:.2f}%" y="{HIGH - height:.1f}" width="{100 / BINS:.2f}%" height="{height:.1f}">'
                f"<title>{tip}</title></rect>"
            )
        body.append(f'<g class="{colour(place)}">{"".join(bars)}</g>')
        body += _median(estimates.get(name), axis, f"median {colour(place)}", 3.0 + 6 * place)
    body.append(line(0, HIGH, 100, HIGH, "axis"))
    for ns, said in axis.ticks():
        x = 100 * axis.place(ns)
        body += [line(x, HIGH, x, HIGH + 4, "axis"), text(said, x, HIGH + _TICK_BELOW, "tick", _anchor(x))]
    return svg(HIGH + 22, "histogram", "Histogram of the samples", body)


def _counts(samples: Sequence[float], axis: Axis) -> list[int]:
    counts = [0] * BINS
    for ns in samples:
        if axis.holds(ns):
            counts[min(BINS - 1, int(axis.place(ns) * BINS))] += 1
    return counts


def _median(estimate: units.Estimate | None, axis: Axis, css: str, y: float) -> list[str]:
    """A line at the median, and its interval as a bar at this height, so that no side hides another's."""
    if estimate is None:
        return []
    value, low, high = positive(estimate.value), positive(estimate.low), positive(estimate.high)
    if value is None or not axis.holds(value):
        return []
    x = 100 * axis.place(value)
    drawn = [line(x, 0, x, HIGH, css)]
    if low is not None and high is not None:
        drawn.append(line(100 * axis.place(low), y, 100 * axis.place(high), y, f"{css} interval"))
    return drawn


def _anchor(x: float) -> str:
    return "start" if x < 5 else "end" if x > 95 else "middle"


def over_time(
    sides: Mapping[str, Sequence[float]], estimates: Mapping[str, units.Estimate], axis: Axis, discarded: int = 0
) -> str:
    """A dot a sample, evenly thinned where there are many, hollow at the edge where the scale ends before it. What was discarded stands
    left of a line. The broken line is the median."""
    body, heights = [], []

    def across(share: float) -> float:
        return _LEFT + (100 - _LEFT) * share

    for ns, said in axis.ticks():
        y = HIGH * (1 - axis.place(ns))
        body.append(line(_LEFT, y, 100, y, "grid"))
        heights.append(text(said, 0, max(11.0, y + 4), "tick"))
    for place, (name, samples) in enumerate(sides.items()):
        every = max(1, math.ceil(len(samples) * len(sides) / MOST))
        dots = [
            f'<circle cx="{across((k + 0.5) / len(samples)):.2f}%" cy="{HIGH * (1 - axis.place(ns)):.1f}" r="1.6"'
            + ("/>" if axis.holds(ns) else ' class="cut"/>')
            for k, ns in enumerate(samples)
            if k % every == 0
        ]
        body.append(f'<g class="{colour(place)}">{"".join(dots)}</g>')
        estimate = estimates.get(name)
        median = positive(estimate.value) if estimate else None
        if median is not None and axis.holds(median):
            y = HIGH * (1 - axis.place(median))
            body.append(line(_LEFT, y, 100, y, f"median {colour(place)} across"))
    if discarded:
        at = across(discarded / max(len(samples) for samples in sides.values()))
        body.append(line(at, 0, at, HIGH, "axis"))
    body += [line(_LEFT, HIGH, 100, HIGH, "axis"), *heights]
    return svg(HIGH + 4, "dots", "Samples over time", body)


def axis_of(sides: Mapping[str, Sequence[float]], discarded: int = 0) -> Axis:
    """One scale for both pictures; what was discarded as warm-up does not stretch it."""
    return fitting([samples[discarded:] or samples for samples in sides.values()])
