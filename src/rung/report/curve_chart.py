"""Curves over time that hold a value until the next: memory in use."""

from __future__ import annotations

import polars as pl

from rung.report import units
from rung.report.svg import escaped, line, svg, text

_TOP, _PLOT, _BELOW = 18.0, 160.0, 24.0  # pixels
_WIDE = 1000.0


def names(curves: pl.DataFrame) -> list[str]:
    """The curves in bytes, in the order of their colours."""
    return curves.filter(pl.col("unit") == "bytes")["name"].unique(maintain_order=True).to_list()


def memory(curves: pl.DataFrame, span: tuple[int, int]) -> str:
    """The curves in bytes of one device in one picture; "" where there are none. curves: columns as in CURVES; span: the first and
    the last ns that the picture shows."""
    known = curves.filter(pl.col("unit") == "bytes", pl.col("value").is_finite()).sort("ts", maintain_order=True)
    if known.is_empty() or span[1] <= span[0]:
        return ""
    begin, end = min(span[0], int(known["ts"][0])), max(span[1], int(known["ts"][-1]))
    values = known["value"].to_list()
    low, high = min(0.0, *values), max(0.0, *values)
    reach = (high - low) or 1.0
    body = []
    for value in dict.fromkeys((low, low + reach / 2, low + reach)):
        y = _TOP + _PLOT * (1 - (value - low) / reach)
        body += [line(0, y, 100, y, "grid"), text(units.data_size(value), 0, y - 4, "tick")]
    for place, name in enumerate(names(curves)):
        curve = known.filter(pl.col("name") == name)
        points: list[str] = []
        last = 0.0
        for ts, value in curve.select("ts", "value").iter_rows():
            x, y = _WIDE * (ts - begin) / (end - begin), _PLOT * (1 - (value - low) / reach)
            points.append(f"M{x:.1f} {y:.1f}" if not points else f"H{x:.1f}V{y:.1f}")
            last = x
        path = "".join(points) + (f"H{_WIDE:.0f}" if last < _WIDE else "")
        body.append(
            f'<svg y="{_TOP:.0f}" width="100%" height="{_PLOT:.0f}" viewBox="0 0 {_WIDE:.0f} {_PLOT:.0f}" preserveAspectRatio="none">'
            f'<path d="{path}" class="curve c{place % 4}"><title>{escaped(name)}</title></path></svg>'
        )
    bottom = _TOP + _PLOT
    body += [text("0", 0, bottom + 16, "tick"), text(units.duration(end - begin), 100, bottom + 16, "tick", "end")]
    return svg(bottom + _BELOW, "curves", "Memory over time", body)
