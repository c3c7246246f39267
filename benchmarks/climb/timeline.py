"""Draws what `time_to_answer.py` or the zoo measured: the answer of each climb over its seconds, beside the plain modes of torch.compile.

python benchmarks/climb/timeline.py answers.jsonl --budget 270 --out docs/img/time-to-answer.svg
python benchmarks/climb/timeline.py h100.jsonl --budget 600 --out docs/img/climb.svg
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, PANEL, GAP, LEFT, RIGHT, TOP = 840, 110, 46, 60, 190, 84  # pixels
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1c1f23; } .name { font-weight: 600; } .soft { fill: #5b636d; }
.rule { stroke: #d5d8dc; } .plain { stroke: #8a929b; fill: #8a929b; } .best { stroke-dasharray: 4 3; }
.answer { stroke: #00705a; stroke-width: 2; fill: none; } .provisional { fill: #fbfbfa; } .verified, .confirmed { fill: #00705a; }
.page { fill: #fbfbfa; }
@media (prefers-color-scheme: dark) { text { fill: #e8eaec; } .soft { fill: #a3abb4; } .rule { stroke: #31373d; }
  .answer { stroke: #3fae90; } .verified, .confirmed { fill: #3fae90; } .provisional, .page { fill: #14171a; } }
""".strip()


def chart(rows: Sequence[dict[str, Any]]) -> str:
    """An SVG, one panel a climb: time from left to right, speedup over the untouched model upwards."""
    height = TOP + len(rows) * (PANEL + GAP)
    last = max(row["budget_s"] for row in rows)
    body = [f'<rect class="page" width="{WIDTH}" height="{height}"/>', *_legend()]
    for k, row in enumerate(rows):
        body += _panel(row, TOP + k * (PANEL + GAP), last)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    label = "The answer of each climb over time, and when the plain modes of torch.compile were ready"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}"><style>{STYLE}</style>{"".join(body)}</svg>\n'


def _panel(row: dict[str, Any], top: float, last: float) -> Iterator[str]:
    result = row["result"]
    history = result["history"]
    modes = [m for m in (result.get("plain") or {}).get("modes", ()) if "speedup" in m]
    most = 1.08 * max([1.0, *(h["speedup"] for h in history), *(m["speedup"] for m in modes)])
    bottom = top + PANEL

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(seconds, last) / last

    def y(speedup: float) -> float:
        return bottom - PANEL * speedup / most

    yield _text(LEFT, top - 8, row["workload"], "name")
    for speedup in _ticks(most):
        yield f'<line class="rule" x1="{LEFT}" x2="{x(last):.1f}" y1="{y(speedup):.1f}" y2="{y(speedup):.1f}"/>'
        yield _text(LEFT - 8, y(speedup) + 4, f"{speedup:g}×", "soft", "end")
    for seconds in range(0, int(last) + 1, 30 if last <= 300 else 60):
        yield _text(x(seconds), bottom + 16, f"{seconds} s", "soft", "middle")
    if modes:
        best = max(modes, key=lambda m: m["speedup"])
        at = f'y1="{y(best["speedup"]):.1f}" y2="{y(best["speedup"]):.1f}"'
        yield f'<line class="plain best" x1="{x(best["ready_seconds"]):.1f}" x2="{x(last):.1f}" {at}/>'
    for mode in modes:
        yield f'<circle class="plain" cx="{x(mode["ready_seconds"]):.1f}" cy="{y(mode["speedup"]):.1f}" r="3"><title>{escape(mode["title"])}</title></circle>'
    path = f"M {x(history[0]['seconds']):.1f} {bottom}"
    for now, then in zip(history, [*history[1:], {"seconds": last}], strict=True):
        path += f" V {y(now['speedup']):.1f} H {x(then['seconds']):.1f}"
    yield f'<path class="answer" d="{path}"/>'
    for k, h in enumerate(history):
        if k == 0 or (h["status"], h["kept"]) != (history[k - 1]["status"], history[k - 1]["kept"]):
            yield from _mark(x(h["seconds"]), y(h["speedup"]), h["status"])
    over = (result.get("over_plain") or {}).get("value")
    said = f"{over:.2f}× the best plain mode" if over else ""
    yield _text(x(last) + 8, y(history[-1]["speedup"]) + 4, said)


def _mark(x: float, y: float, status: str) -> Iterator[str]:
    yield f'<circle class="answer {status}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if status == "confirmed":
        yield f'<circle class="answer" cx="{x:.1f}" cy="{y:.1f}" r="8"/>'


def _legend() -> Iterator[str]:
    yield _text(LEFT, 22, "Times as fast as the untouched model, over the seconds of a climb", "name")
    x = float(LEFT)
    for status in ("provisional", "verified", "confirmed"):
        yield from _mark(x + 8, 40, status)
        yield _text(x + 22, 44, status)
        x += 110
    yield f'<circle class="plain" cx="{x + 8}" cy="40" r="3"/>'
    yield _text(x + 22, 44, "a mode of plain torch.compile is ready; dashed: the best of them")


def _ticks(most: float) -> list[float]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, math.inf) if most / s <= 4)
    return [step * k for k in range(int(most / step) + 1)]


def _text(x: float, y: float, said: str, css: str = "", anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.file.read_text().splitlines()]
    climbs = [_of_the_zoo(row) if row.get("type") == "row" else row for row in rows if row.get("type") != "order"]
    found = [c for c in climbs if c.get("budget_s") == given.budget and (c.get("result") or {}).get("history")]
    given.out.write_text(chart(found))


def _of_the_zoo(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the zoo as one of time_to_answer.py."""
    climb, kind = row.get("climb") or {}, {"train": "training", "infer": "inference"}[row["variant"]]
    name = f"{row['name']}, {kind}, {row['numerics']}, {row['eager']['device']}"
    return {"workload": name, "budget_s": climb.get("budget_s"), "result": climb.get("result") or {}}


if __name__ == "__main__":
    main()
