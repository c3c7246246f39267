"""Measurements and comparisons as a page: the histogram and the time series of the samples. No script, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rung.report import units
from rung.report.bench import bench_lines
from rung.report.compare import compare_lines
from rung.report.svg import line, svg, text

BINS, HIGH, MOST = 60, 150.0, 1500
COLOURS = ("#0072b2", "#e69f00", "#00705a", "#cc79a7", "#56b4e9", "#c24f00")
STYLE = """
.bars rect { fill-opacity: .55; } .dots circle { fill-opacity: .6; } .kept { font-weight: 600; }
"""


def bench_page(results: Sequence[dict[str, Any]]) -> str:
    """One measurement, or those of a sweep below each other."""
    parts = []
    for result in results:
        point = " ".join(f"{k}={v}" for k, v in result.get("point", {}).items())
        title = f"{result['workload']} {point}".strip()
        parts.append(
            _section(
                title,
                bench_lines(result),
                {"": [*result.get("discarded", []), *result["samples"]]},
                len(result.get("discarded", [])),
            )
        )
    return _page(f"Rung: {results[0]['workload']}", parts)


def compare_page(result: dict[str, Any]) -> str:
    """The samples of all sides, one restart after the other."""
    restarts = result.get("restarts", [])
    sides = {side.upper(): [x for r in restarts for x in r[side]] for side in (restarts[0] if restarts else ())}
    return _page("Rung: comparison", [_section("Comparison", compare_lines(result), sides, 0)])


def _page(title: str, parts: Sequence[str]) -> str:
    css = (Path(__file__).parent / "climb.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{_safe(title)}</title>\n<style>\n{css}{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{''.join(parts)}</main>\n</body>\n</html>\n"
    )


def _section(title: str, lines: Sequence[str], sides: Mapping[str, Sequence[float]], discarded: int) -> str:
    key = "".join(
        f' <b style="color:{c}">{_safe(name)}</b>'
        for (name, _), c in zip(sides.items(), _colours(), strict=False)
        if name
    )
    told = f" The first {discarded}, left of the line, were discarded as warm-up." if discarded else ""
    text = "\n".join(_safe(line) for line in lines)
    pictures = (
        f"<h2>Histogram</h2><p class='caption'>How often a step took so long; the slowest 2 % stand at the edge.{key}</p>{histogram(sides, discarded)}"
        f"<h2>Over time</h2><p class='caption'>Each sample in its turn.{told}{key}</p>{over_time(sides, discarded)}"
    )
    return f"<h1><span>{_safe(title)}</span></h1>\n<pre>{text}</pre>\n{pictures if any(sides.values()) else ''}\n"


def _colours() -> list[str]:
    return [COLOURS[k % len(COLOURS)] for k in range(26)]


def _safe(text: str) -> str:
    return escape(units.clean(text), quote=True)


def _range(sides: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """From the fastest sample to the slowest but the last 2 %."""
    together = sorted(x for samples in sides.values() for x in samples)
    low, high = together[0], together[min(len(together) - 1, math.floor(0.98 * len(together)))]
    return (low, high) if high > low else (low * 0.99, low * 1.01)


def histogram(sides: Mapping[str, Sequence[float]], discarded: int = 0) -> str:
    """Bars of the kept samples, the sides over each other."""
    kept = {name: list(samples[discarded:]) for name, samples in sides.items() if samples[discarded:]}
    low, high = _range(kept)
    body = []
    for samples, colour in zip(kept.values(), _colours(), strict=False):
        counts = [0] * BINS
        for value in samples:
            counts[min(BINS - 1, int((value - low) / (high - low) * BINS))] += 1
        for k, count in enumerate(counts):
            height = HIGH * count / max(counts)
            if count:
                tip = f"{units.duration(low + (high - low) * k / BINS)}: {count}"
                body.append(
                    f'<rect x="{100 * k / BINS:.2f}%" y="{HIGH - height:.1f}" width="{100 / BINS:.2f}%" height="{height:.1f}" '
                    f'fill="{colour}"><title>{tip}</title></rect>'
                )
    body += [line(0, HIGH, 100, HIGH, "axis"), text(units.duration(low), 0, HIGH + 15, "tick"),
             text(units.duration(high), 100, HIGH + 15, "tick", "end")]  # fmt: skip
    return svg(HIGH + 20, "bars", "Histogram of the samples", body)


def over_time(sides: Mapping[str, Sequence[float]], discarded: int = 0) -> str:
    """A dot a sample, evenly thinned where there are many; what was discarded stands left of a line."""
    low, high = _range(sides)
    body = []
    for samples, colour in zip(sides.values(), _colours(), strict=False):
        every = max(1, math.ceil(len(samples) * len(sides) / MOST))
        dots = [
            f'<circle cx="{100 * k / len(samples):.2f}%" cy="{HIGH * (1 - min(1.0, max(0.0, (x - low) / (high - low)))):.1f}" r="1.6"/>'
            for k, x in enumerate(samples)
            if k % every == 0
        ]
        body.append(f'<g fill="{colour}">{"".join(dots)}</g>')
    if discarded:
        at = 100 * discarded / max(len(s) for s in sides.values())
        body.append(line(at, 0, at, HIGH, "axis"))
    body += [line(0, HIGH, 100, HIGH, "axis"), text(units.duration(high), 0, 11, "tick"),
             text(units.duration(low), 0, HIGH + 15, "tick")]  # fmt: skip
    return svg(HIGH + 20, "dots", "Samples over time", body)
