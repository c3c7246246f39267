"""The pictures of the page as SVG text. Across, places are percentages, so a picture fits any width and its
letters keep their size; down, they are pixels. Every text goes through `text`, which escapes it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rung.report import units, words
from rung.report.axis import fitting
from rung.report.svg import arrow, dot, escaped, line, positive, positives, svg, text

_LEFT, _RIGHT = 11.0, 1.0  # margins of the ladder, in percent
_TOP, _PLOT, _LABELS = 26.0, 230.0, 104.0  # heights of the ladder's parts, in pixels
_HEAD = 4.0  # pixels by which an arrow head stands out of the plot
_LOG_FROM = 4.0  # a wider range than this is drawn on a log scale
MOST_POINTS = 200  # a side of a strip


# ---- the ladder ------------------------------------------------------------------------------------------


def ladder(data: dict[str, Any]) -> str:
    """The speedup over the untouched model after each attempt: the staircase of what was kept, faint marks for what was not, and at
    the end the answer in fresh restarts.

    An attempt is timed beside the best before it, in turns, so its place is that best's place times what it gave. Times of different
    moments are not joined: on a machine whose speed changes, a kept rung would go down.
    """
    attempts = [a for a in words.attempts(data) if a.get("log")]  # what does not apply has no place on the way
    if not attempts:
        return ""
    result, baseline = units.section(data, "result"), words.before(data)
    final = units.section(result, "speedup") if result.get("status") == "confirmed" else {}
    plain = positive(units.section(result, "plain").get("speedup"))
    steps = _steps(attempts, result)
    gains = [1.0, *(g for g in (*(step.get("value") for _, step in steps), plain, positive(final.get("value"))) if g)]
    place, ticks = _scale(gains)
    slot = (100 - _LEFT - _RIGHT) / (len(attempts) + 1 + bool(final))
    bottom = _TOP + _PLOT
    body = []
    for tick in ticks:
        body.append(line(0, place(tick), 100, place(tick), "grid"))
        body.append(text(f"{tick:g}×", 0, place(tick) - 4, "tick"))
    if plain and plain > 1:
        body.append(line(_LEFT, place(plain), 100, place(plain), "reference"))

    best, x = 1.0, _LEFT
    start = f"untouched model: {units.duration(positive(baseline.get('value')))}"
    stairs = [line(x, place(best), x + slot, place(best), "stair")]
    marks = [dot(x + slot / 2, place(best), 3.5, "kept", start)]
    values = [text("1×", x + slot / 2, place(best) - 9, "value", "middle")]
    if plain and plain > 1:  # at the left, where the staircase is still low
        values.append(text(f"best plain torch.compile: {units.ratio(plain)}", _LEFT, place(plain) - 5, "tick"))
    names = [_name("untouched", x + slot / 2, bottom, "name")]
    tries: dict[str, int] = {}
    for attempt, step in steps:
        x += slot
        middle, verdict, gain = x + slot / 2, units.clean(attempt.get("verdict")), step.get("value")
        kept = _stands(attempt, result) and gain is not None
        name = words.name(attempt)
        tries[name] = tries.get(name, 0) + 1
        named = name if tries[name] == 1 else f"{name} ({tries[name]})"
        if kept and verdict != "kept":
            named += f", {units.clean(result.get('status'))}"
        tip = f"{named}: {verdict}" + (
            f", {units.interval(words.speedup(attempt))} of the best before it" if gain else ""
        )
        expected = units.section(attempt, "prediction")
        low, high = (positive(expected.get(end)) for end in ("low", "high"))
        if low is not None and high is not None:
            body.append(line(middle, place(best * low), middle, place(best * high), "predicted"))
        if kept and gain is not None:
            stairs.append(line(x, place(best), x, place(gain), "stair"))
            best = gain
            values.append(text(units.ratio(gain), middle, _above(step, gain, place), "value minor", "middle"))
        stairs.append(line(x, place(best), x + slot, place(best), "stair"))
        if gain is not None:
            marks += _mark(step, middle, place, "kept" if kept else "tried", tip)
        else:
            marks.append(text("×", middle, bottom - 3, "cross", "middle"))
        names.append(_name(named, middle, bottom, "name" if kept else "name faint"))
    if confirmed := positive(final.get("value")):
        x += slot
        tip = f"confirmed in fresh restarts: {units.interval(final)} over the untouched model"
        marks += _mark(final, x + slot / 2, place, "kept", tip)
        values.append(text(units.ratio(confirmed), x + slot / 2, _above(final, confirmed, place), "value", "middle"))
        names.append(_name("confirmed", x + slot / 2, bottom, "name"))
    body += [line(0, bottom, 100, bottom, "axis"), *stairs, *marks, *values, *names]
    return svg(bottom + _LABELS, "ladder", "Speedup over the untouched model after each attempt", body)


def _stands(attempt: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether an attempt was kept; or is the answer, though its time was over before it was decided."""
    of_answer = bool(result.get("kept")) and attempt.get("stack") == result.get("kept")
    return attempt.get("verdict") == "kept" or (attempt.get("verdict") == "inconclusive" and of_answer)


def _steps(attempts: Sequence[dict[str, Any]], result: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Each attempt with its speedup over the untouched model: `value`, and `low` and `high` of what the attempt itself gave."""
    best, steps = 1.0, []
    for attempt in attempts:
        ends = {name: positive(units.section(words.speedup(attempt)).get(name)) for name in ("value", "low", "high")}
        step = {name: best * end for name, end in ends.items() if end is not None}
        steps.append((attempt, step))
        if _stands(attempt, result) and "value" in step:
            best = step["value"]
    return steps


def _name(name: str, x: float, bottom: float, css: str) -> str:
    """A slanted name under the axis; the inner svg carries the place, so that the text can turn around it."""
    short = name if len(name) <= 18 else name[:17] + "…"
    return (
        f'<svg x="{x:.2f}%" y="{bottom + 12:.1f}" overflow="visible"><text class="{css}" text-anchor="end" '
        f'transform="rotate(-55)">{escaped(short)}</text></svg>'
    )


def _above(estimate: dict[str, Any], value: float, place: Callable[[float], float]) -> float:
    return min(place(value), place(positive(estimate.get("high")) or value)) - 9


def _mark(estimate: dict[str, Any], x: float, place: Callable[[float], float], css: str, title: str) -> list[str]:
    value = positive(estimate.get("value"))
    if value is None:
        return []
    low, high = positive(estimate.get("low")), positive(estimate.get("high"))
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


def time_bars(bars: Sequence[tuple[str, Any]]) -> str:
    """One stacked bar for each (label, breakdown), all on one scale: a shorter bar is a faster step."""
    shown = [(label, units.section(b), words.parts(b)) for label, b in bars if words.parts(b)]
    return stacked(
        [
            (
                f"{label}: {units.duration(positive(record.get('step_ns')) or sum(value for *_, value in parts))} per step",
                parts,
            )
            for label, record, parts in shown
        ]
    )


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
            css = key if key in words.PARTS else "other"
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


def strip(restarts: Any) -> tuple[str, str]:
    """(the samples of each restart, the best so far above and the candidate below, on one scale; what there is to say of the scale)."""
    rows = [units.section(r) for r in restarts or []]
    pairs = [(_samples(r.get("best"), len(rows)), _samples(r.get("candidate"), len(rows))) for r in rows]
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


def _samples(values: Any, sides: int) -> list[float]:
    """The samples that can be drawn, evenly thinned so that all restarts together stay within the limit."""
    known = positives(values)
    limit = max(1, MOST_POINTS // max(sides, 1))
    if len(known) <= limit:
        return known
    return [known[i * len(known) // limit] for i in range(limit)]
