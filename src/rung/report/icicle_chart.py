"""An icicle as it is without a script and on paper: a rectangle a node, as wide as its time, below what it is part of."""

from __future__ import annotations

from rung.analysis.icicle import Icicle
from rung.analysis.kernel_names import readable
from rung.report import units
from rung.report.svg import escaped, svg
from rung.report.trace_record import colour

_ROW = 20.0  # pixels
_LEAST = 0.4  # percent of the width: what is narrower is left out
_NAMED = 4.0  # percent: what is narrower has no name in it


def icicle_svg(icicle: Icicle, steps: int) -> str:
    """The picture. Times are of a step."""
    nodes = icicle.nodes
    total = max(1, int(nodes["time_ns"][0]))
    places: list[tuple[float, int]] = []  # (left in percent, depth) of each node
    filled: list[float] = []  # how far its children reach
    body, deepest = [], 0
    for name, category, parent, time_ns, count in nodes.iter_rows():
        left, depth = (0.0, 0) if parent is None else (filled[parent], places[parent][1] + 1)
        wide = 100 * time_ns / total
        if parent is not None:
            filled[parent] += wide
        places.append((left, depth))
        filled.append(left)
        if wide < _LEAST:
            continue
        deepest = max(deepest, depth)
        css, short = colour(category or ""), readable(units.one_line(name))
        tip = f"{units.one_line(name)}: {units.duration(time_ns / steps)}, {units.percent(round(time_ns / total, 3))}, {units.count(count / steps)} events"
        label = f'<text x="4" y="14" class="on-{css}">{escaped(short)}</text>' if wide >= _NAMED else ""
        body.append(
            f'<svg x="{left:.3f}%" y="{depth * _ROW:.0f}" width="{wide:.3f}%" height="{_ROW - 1:.0f}" class="node">'
            f'<rect width="100%" height="100%" class="part p-{css}"/>{label}<title>{escaped(tip)}</title></svg>'
        )
    return svg((deepest + 1) * _ROW, "icicle", f"GPU time by {icicle.by.replace('_', ' ')}", body)
