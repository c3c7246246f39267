"""The pictures of a trace's page, as they are without a script and on paper.

timeline        the whole span, a line a row, each column in the colour of what took most of it
memory_curves   curves that hold a value until the next
icicle_svg      a rectangle a node, as wide as its time, below what it is part of
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rung.analysis.icicle import Icicle
from rung.analysis.kernel_names import readable
from rung.analysis.lanes import Lanes
from rung.report import units
from rung.report.svg import escaped, line, svg, text
from rung.report.trace_record import ON_HOST, colour

COLUMNS = 800  # of the picture
_ROW, _TITLE, _AXIS = 10.0, 18.0, 22.0  # pixels
_MOST_ROWS = {"host": 4}  # of a lane; the others are there to be zoomed into
_TICKS = 5
_GROUPS = {"gpu": "on the GPUs", "host": "on the host", "beside": "beside them"}


def timeline(lanes: Lanes, titles: Sequence[str] = ()) -> str:
    """The picture; "" where there is nothing to draw. titles: what to call ranks 0, 1, ... where they are none."""
    if lanes.lanes.is_empty() or not lanes.span_ns:
        return ""
    ranks = lanes.lanes["rank"].n_unique() > 1
    shown = dict(_columns(lanes).group_by("lane", "row", maintain_order=True))
    body, y = [], 0.0
    for rank, side, where, number, rows in lanes.lanes.select("rank", "side", "where", "lane", "rows").iter_rows():
        of = titles[rank] if titles else f"rank {rank}" if ranks and rank is not None else ""
        body.append(text(f"{of}, {where}" if of else where, 0, y + 13, "tick"))
        y += _TITLE
        for row in range(min(rows, _MOST_ROWS.get(side, rows))):
            if (number, row) in shown:
                body.append(_row(shown[number, row], y))
            y += _ROW
    for k in range(_TICKS):
        share = k / (_TICKS - 1)
        anchor = "start" if k == 0 else "end" if k == _TICKS - 1 else "middle"
        body.append(line(100 * share, 0, 100 * share, y + 4, "grid"))
        body.append(text(units.duration(lanes.span_ns * share) if k else "0", 100 * share, y + 17, "tick", anchor))
    return svg(y + _AXIS, "timeline", "Timeline of the whole recording", body)


def host_legend(lanes: Lanes) -> list[tuple[str, str]]:
    """(class of the colour, title) of what host threads have."""
    drawn = set(lanes.kinds["category"])
    return [(category, title) for category, title in ON_HOST.items() if category in drawn]


def drawn_together(lanes: Lanes) -> list[str]:
    """What the timeline does not show one by one, in sentences."""
    said = []
    if lanes.together:
        shorter = ", ".join(f"{units.duration(ns)} {_GROUPS[group]}" for group, ns in lanes.shorter_ns.items())
        said.append(
            f"{units.count(lanes.together)} of {units.count(lanes.events)} events are drawn together with their neighbours, as each is shorter than "
            f"{shorter}. Such slices are pale."
        )
    said += [f"{units.count(number)} events {what} are not drawn." for what, number in lanes.hidden.items()]
    return said


def _columns(lanes: Lanes) -> pl.DataFrame:
    """For each lane, row and column the category that took most of it; of a slice over several columns, all of them."""
    width = max(1, -(-lanes.span_ns // COLUMNS))
    cut = (
        lanes.slices.select("lane", "row", "ts", "kind", end=pl.col("ts") + pl.col("dur"))
        .with_columns(column=pl.int_ranges(pl.col("ts") // width, pl.col("end") // width + 1))
        .explode("column")
    )
    begin = pl.max_horizontal("ts", pl.col("column") * width)
    part = cut.with_columns(
        part=pl.min_horizontal("end", (pl.col("column") + 1) * width) - begin,
        category=lanes.kinds["category"].gather(cut["kind"]),
    )
    sums = part.group_by("lane", "row", "column", "category").agg(pl.col("part").sum())
    most = sums.sort("part", "category", descending=[True, False]).unique(
        ["lane", "row", "column"], keep="first", maintain_order=True
    )
    return most.sort("lane", "row", "column")


def _row(columns: pl.DataFrame, y: float) -> str:
    """A path a colour: runs of columns side by side are one rectangle."""
    runs: dict[str, list[list[int]]] = {}
    for column, category in columns.select("column", "category").iter_rows():
        of_colour = runs.setdefault(colour(category), [])
        if of_colour and of_colour[-1][0] + of_colour[-1][1] == column:
            of_colour[-1][1] += 1
        else:
            of_colour.append([column, 1])
    drawn = "".join(
        f'<path class="p-{name}" d="{"".join(f"M{begin} 0h{wide}v1h-{wide}z" for begin, wide in places)}"/>'
        for name, places in runs.items()
    )
    return f'<svg y="{y:.0f}" width="100%" height="{_ROW - 1:.0f}" viewBox="0 0 {COLUMNS} 1" preserveAspectRatio="none">{drawn}</svg>'


_TOP, _PLOT, _BELOW = 18.0, 160.0, 24.0  # pixels
_WIDE = 1000.0


def curve_names(curves: pl.DataFrame) -> list[str]:
    """The curves in bytes, in the order of their colours."""
    return curves.filter(pl.col("unit") == "bytes")["name"].unique(maintain_order=True).to_list()


def memory_curves(curves: pl.DataFrame, span: tuple[int, int]) -> str:
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
    for place, name in enumerate(curve_names(curves)):
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


_NODE = 20.0  # pixels
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
            f'<svg x="{left:.3f}%" y="{depth * _NODE:.0f}" width="{wide:.3f}%" height="{_NODE - 1:.0f}" class="node">'
            f'<rect width="100%" height="100%" class="part p-{css}"/>{label}<title>{escaped(tip)}</title></svg>'
        )
    return svg((deepest + 1) * _NODE, "icicle", f"GPU time by {icicle.by.replace('_', ' ')}", body)
