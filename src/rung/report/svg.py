"""Pieces of a picture as SVG text. Across, places are percentages, so a picture fits any width and its letters keep
their size; down, they are pixels. Every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
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
