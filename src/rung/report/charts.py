"""The pictures of the page as SVG text. Across, places are percentages, so a picture fits any width and its
letters keep their size; down, they are pixels. Every text goes through `text`, which escapes it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rung.records.analyze import Breakdown
from rung.records.climb import Attempt, ClimbRun, Result
from rung.report import attempt_words, breakdowns, units, words
from rung.report.forest_chart import Restarts
from rung.report.svg import arrow, dot, escaped, fitting, line, positive, positives, svg, text

_LEFT, _RIGHT = 11.0, 1.0  # margins of the ladder, in percent
_TOP, _PLOT, _OWN, _LABELS = 26.0, 230.0, 18.0, 104.0  # heights of the ladder's parts, in pixels
_HEAD = 4.0  # pixels by which an arrow head stands out of the plot
_PREDICTED = 1.5  # times the most that was measured: a prediction may stretch the scale so far
_LOG_FROM = 4.0  # a wider range than this is drawn on a log scale
MOST_POINTS = 200  # a side of a strip


# ---- the ladder ------------------------------------------------------------------------------------------


def ladder(run: ClimbRun) -> str:
    """The speedup over the untouched model after each attempt: the staircase of what was kept, faint marks for what was not, and at
    the end the answer in fresh restarts, or one that is another mode than its attempt ended with. Below the axis, what each attempt
    itself gave.

    An attempt is timed beside the best before it, in turns, so its place is that best's place times what it gave. Times of different
    moments are not joined: on a machine whose speed changes, a kept rung would go down.
    """
    attempts = [a for a in run.attempts if a.log]  # what does not apply has no place on the way
    if not attempts:
        return ""
    result, before = run.result, words.before(run)
    last = next((a for a in reversed(attempts) if attempt_words.stands(a, result)), None)
    elsewhere = result is not None and bool(result.kept) and last is None
    final = result.speedup if result and (result.status == "confirmed" or elsewhere) else None
    ended = positive(final.value) if final else None
    plain = positive(result.plain.speedup) if result and result.plain else None
    steps = _steps(attempts, result)
    gains = [1.0, *(g for g in (*(step.value for _, step in steps), plain, ended) if g)]
    place, ticks = _scale([*gains, *_ends([step for _, step in steps], gains)])
    slot = (100 - _LEFT - _RIGHT) / (len(attempts) + 1 + bool(final))
    bottom = _TOP + _PLOT
    body = []
    for tick in ticks:
        body.append(line(0, place(tick), 100, place(tick), "grid"))
        body.append(text(f"{tick:g}×", 0, place(tick) - 4, "tick"))
    if plain and plain > 1:
        body.append(line(_LEFT, place(plain), 100, place(plain), "reference"))

    best, x = 1.0, _LEFT
    start = f"untouched model: {units.duration(positive(before.value) if before else None)}"
    stairs = [line(x, place(best), x + slot, place(best), "stair")]
    marks = [dot(x + slot / 2, place(best), 3.5, "kept", start)]
    values = [
        text("1×", x + slot / 2, place(best) + 18, "value", "middle")
    ]  # above it may be the line of plain torch.compile
    if plain and plain > 1:  # at the left, where the staircase is still low
        shorter = '<tspan class="minor">best plain </tspan>'  # on a phone
        said = f"torch.compile: {escaped(units.ratio(plain))}"
        values.append(f'<text x="{_LEFT:.2f}%" y="{place(plain) - 5:.1f}" class="tick over">{shorter}{said}</text>')
    names = [_name("untouched", x + slot / 2, bottom, "name")]
    tries: dict[str, int] = {}
    for attempt, step in steps:
        x += slot
        middle, verdict, gain = x + slot / 2, units.clean(attempt.verdict), step.value
        kept = attempt_words.stands(attempt, result) and gain is not None
        name = attempt_words.name(attempt)
        tries[name] = tries.get(name, 0) + 1
        named = name if tries[name] == 1 else f"{name} ({tries[name]})"
        if kept and verdict != "kept":
            named += f", {units.clean(result and result.status)}"
        tip = f"{named}: {verdict}" + (
            f", {units.interval(attempt_words.speedup(attempt))} of the best before it" if gain else ""
        )
        if step.predicted:
            body += _predicted(step.predicted, middle, place)
        if kept and gain is not None:
            stairs.append(line(x, place(best), x, place(gain), "stair"))
            best = gain
            css = "value" if attempt is last and not final else "value minor"  # on a phone there is room for the last
            values.append(text(units.ratio(gain), middle, _above(step, gain, place), css, "middle"))
        stairs.append(line(x, place(best), x + slot, place(best), "stair"))
        if gain is not None:
            css = "tried" if not kept else "kept" if verdict == "kept" else "provisional"
            marks += _mark(step, middle, place, css, tip)
            own = attempt_words.speedup(attempt)
            values.append(text(units.ratio(own and own.value), middle, bottom + 14, "tick minor", "middle"))
        else:
            marks.append(text("×", middle, bottom - 3, "cross", "middle"))
        names.append(_name(named, middle, bottom, "name" if kept else "name faint"))
    if result and final and ended:
        x += slot
        status = units.clean(result.status)
        said = "confirmed in fresh restarts" if status == "confirmed" else f"the recipe, {status}"
        tip = f"{said}: {units.interval(final)} over the untouched model"
        css = "provisional" if status == "provisional" else "kept"
        marks += _mark(final, x + slot / 2, place, css, tip)
        values.append(text(units.ratio(ended), x + slot / 2, _above(final, ended, place), "value", "middle"))
        names.append(_name(status, x + slot / 2, bottom, "name"))
    body += [line(0, bottom, 100, bottom, "axis"), *stairs, *marks, *values, *names]
    return svg(bottom + _OWN + _LABELS, "ladder", "Speedup over the untouched model after each attempt", body)


class _Step(NamedTuple):
    """The speedup of an attempt over the untouched model, with the ends of what the attempt itself gave, and of what was predicted; None
    where one has no place."""

    value: float | None
    low: float | None
    high: float | None
    predicted: tuple[float, float] | None


def _steps(attempts: Sequence[Attempt], result: Result | None) -> list[tuple[Attempt, _Step]]:
    best, steps = 1.0, []
    for attempt in attempts:
        gain, expected = attempt_words.speedup(attempt), attempt.prediction
        ends = [positive(end) for end in (gain.value, gain.low, gain.high)] if gain else [None] * 3
        value, least, most = (None if end is None else best * end for end in ends)
        low, high = (positive(expected.low), positive(expected.high)) if expected else (None, None)
        step = _Step(value, least, most, None if low is None or high is None else (best * low, best * high))
        steps.append((attempt, step))
        if attempt_words.stands(attempt, result) and step.value is not None:
            best = step.value
    return steps


def _ends(steps: Sequence[_Step], gains: Sequence[float]) -> list[float]:
    """The ends of predictions that the scale shows: none far from all that was measured."""
    least, most = min(gains) / _PREDICTED, max(gains) * _PREDICTED
    return [min(max(end, least), most) for step in steps for end in step.predicted or ()]


def _predicted(ends: tuple[float, float], x: float, place: Callable[[float], float]) -> list[str]:
    """A band, with an arrow head where it goes on beyond the picture."""
    below, above = place(ends[0]), place(ends[1])
    drawn = [line(x, below, x, above, "predicted")]
    drawn += [arrow(x, above - _HEAD, "beyond")] if above <= _TOP else []
    drawn += [arrow(x, below + _HEAD, "beyond", down=True)] if below >= _TOP + _PLOT else []
    return drawn


def _name(name: str, x: float, bottom: float, css: str) -> str:
    """A slanted name under the axis; the inner svg carries the place, so that the text can turn around it."""
    short = name if len(name) <= 18 else name[:17] + "…"
    return (
        f'<svg x="{x:.2f}%" y="{bottom + _OWN + 12:.1f}" overflow="visible"><text class="{css}" text-anchor="end" '
        f'transform="rotate(-55)">{escaped(short)}</text></svg>'
    )


def _above(estimate: units.Estimate, value: float, place: Callable[[float], float]) -> float:
    return min(place(value), place(positive(estimate.high) or value)) - 9


def _mark(estimate: units.Estimate, x: float, place: Callable[[float], float], css: str, title: str) -> list[str]:
    value, low, high = positive(estimate.value), positive(estimate.low), positive(estimate.high)
    if value is None:
        return []
    whisker = []
    if low is not None and high is not None:
        # All medians lie inside of the plot: an end at its edge is cut off there. The head stands out, clear of the median's dot.
        above, below = place(high) <= _TOP, place(low) >= _TOP + _PLOT
        top, bottom = place(high) - _HEAD * above, place(low) + _HEAD * below
        whisker = [line(x, bottom, x, top, f"whisker {css}")]
        whisker += [arrow(x, top, f"whisker {css}")] if above else []
        whisker += [arrow(x, bottom, f"whisker {css}", down=True)] if below else []
    return [*whisker, dot(x, place(value), 3.5, css, title)]


def _scale(gains: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """From a speedup to its height on the plot, and the round ones that get a line."""
    least, most = min(gains), max(gains)
    if most / least > _LOG_FROM:
        low, high = math.log(least / 1.6), math.log(most * 1.1)
        powers = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1)
        steps = (1, 2, 5) if high - low < math.log(300) else (1,)
        ticks = [m * 10.0**p for p in powers for m in steps if low <= math.log(m * 10.0**p) <= high]

        def place(gain: float) -> float:
            share = (math.log(gain) - low) / (high - low)
            return _TOP + _PLOT * (1 - min(max(share, 0.0), 1.0))

        return place, ticks
    top = most * 1.1
    unit = 10.0 ** math.floor(math.log10(top / 6))
    step = next((m * unit for m in (1, 2, 5) if m * unit >= top / 6), 10 * unit)
    ticks = [step * i for i in range(1, int(top / step) + 1)]
    return lambda gain: _TOP + _PLOT * (1 - min(gain / top, 1.0)), ticks


# ---- where the time went ---------------------------------------------------------------------------------


def time_bars(bars: Sequence[tuple[str, Breakdown | None]]) -> str:
    """One stacked bar for each (label, breakdown), all on one scale: a shorter bar is a faster step."""
    shown = []
    for label, breakdown in bars:
        if breakdown and (parts := breakdowns.parts(breakdown)):
            step = positive(breakdown.step_ns) or sum(value for *_, value in parts)
            shown.append((f"{label}: {units.duration(step)} per step", parts))
    return stacked(shown)


def stacked(bars: Sequence[tuple[str, Sequence[tuple[str, str, float]]]]) -> str:
    """One stacked bar for each (label, its parts), all on one scale. A part: (class of its colour, title, ns)."""
    if not bars:
        return ""
    lengths = [sum(value for *_, value in parts) for _, parts in bars]
    body = []
    for index, ((label, parts), length) in enumerate(zip(bars, lengths, strict=True)):
        y = index * 74.0
        body.append(text(label, 0, y + 14, "barlabel"))
        x = 0.0
        for key, title, value in parts:
            width = 100 * value / (max(lengths) or 1)
            tip = f"{title}: {units.duration(value)}, {units.percent(value / (length or 1))}"
            css = key if key in breakdowns.PARTS else "other"
            body.append(
                f'<rect x="{x:.3f}%" y="{y + 23:.0f}" width="{width:.3f}%" height="34" class="part p-{css}">'
                f"<title>{escaped(tip)}</title></rect>"
            )
            if width >= 9.5:
                share = f"{value / length:.0%}"
                body.append(text(share, x + width / 2, y + 44, f"share on-{css}", "middle"))
            x += width
    return svg(74 * len(bars) - 12, "bars", "Where the time of a step goes", body)


# ---- samples ---------------------------------------------------------------------------------------------


def strip(restarts: Restarts) -> tuple[str, str]:
    """(the samples of each restart, the best so far above and the candidate below, on one scale; what there is to say of the scale)."""
    rows = restarts or ()
    pairs = [(_samples(r.get("best", ()), len(rows)), _samples(r.get("candidate", ()), len(rows))) for r in rows]
    if not any(side for pair in pairs for side in pair):
        return "", ""
    axis = fitting([[ns for pair in pairs for ns in pair[side]] for side in (0, 1)])
    body = []
    for index, pair in enumerate(pairs):
        y = index * 40.0
        for offset, css, side in ((12, "best", pair[0]), (28, "candidate", pair[1])):
            dots = [
                dot(1 + 98 * axis.place(v), y + offset + (i * 7 % 11 - 5), 2, "" if axis.holds(v) else "cut")
                for i, v in enumerate(side)
            ]
            median = 1 + 98 * axis.place(statistics.median(side)) if side else None
            middle = [line(median, y + offset - 8, median, y + offset + 8, "middle")] if median is not None else []
            body.append(f'<g class="{css}">{"".join([*dots, *middle])}</g>')
        body.append(line(0, y + 40, 100, y + 40, "grid"))
    bottom = 40 * len(pairs)
    for ns, said in axis.ticks():
        x = 1 + 98 * axis.place(ns)
        body += [line(x, bottom, x, bottom + 4, "axis"), text(said, x, bottom + 16, "tick", "start" if x < 5 else "end" if x > 95 else "middle")]  # fmt: skip
    label = "Samples of each restart, best so far above, candidate below"
    return svg(bottom + 20, "strip", label, body), axis.note()


def _samples(values: Sequence[float], sides: int) -> list[float]:
    """The samples that can be drawn, evenly thinned so that all restarts together stay within the limit."""
    known = positives(values)
    limit = max(1, MOST_POINTS // max(sides, 1))
    if len(known) <= limit:
        return known
    return [known[i * len(known) // limit] for i in range(limit)]
