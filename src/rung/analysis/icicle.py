"""The GPU's time as trees: by nn.Module, by operator, by line of Python, with the kernels at the leaves."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.classified import classified
from rung.analysis.frames import enclosing, launching_user_frames, module_frames, place
from rung.analysis.intervals import Ints
from rung.analysis.modules import classes
from rung.analysis.nesting import nearest
from rung.analysis.spending import without
from rung.trace.table import Trace

BY = {"module": "module", "operator": "operator", "call_site": "Python frame"}
LEAST = 0.0005  # of all time: less cannot be seen at the first zoom
REST = "(smaller ones)"


@dataclass(frozen=True)
class Icicle:
    """nodes: one row a node, a parent before its children, of children the longest first: `name`, `category` (of a kernel, else null),
    `parent` (its row; null for the root), `time_ns` (with all below it, over the recording), `count` (GPU events). The children of a node
    add up to it. Nodes below LEAST of the time are one node, REST.
    """

    by: str
    nodes: pl.DataFrame


@dataclass
class _Node:
    """A node in the making: `parent` is its position among the nodes; time and count grow by what is below it."""

    name: str
    category: str | None
    parent: int | None
    time_ns: int = 0
    count: int = 0


def icicle(trace: Trace, by: str) -> Icicle | None:
    """The tree by a key of BY; None where the trace does not say it: no GPU event has a place in it."""
    events = classified(trace)
    names, above, of_event = {"module": _modules, "operator": _operators, "call_site": _call_sites}[by](trace)
    if of_event.null_count() == events.height:
        return None
    path, up, of = paths(above, names)
    end = len(up)
    at = pl.Series(path, dtype=pl.Int64).gather(of_event) if path.size else of_event.cast(pl.Int64)
    grouped = (
        events.select("dur", "name", "category", label=without(BY[by]), at=at)
        .with_columns(label=pl.when(pl.col("at").is_null()).then("label"))
        .group_by("at", "label", "name", "category")
        .agg(time_ns=pl.col("dur").sum(), count=pl.len())
        .sort("time_ns", "name", descending=[True, False])
    )
    places = {label: end + k for k, label in enumerate(grouped["label"].drop_nulls().unique().sort())}
    root = end + len(places)
    nodes = [_Node(names[of[k]], None, up[k] if up[k] >= 0 else root) for k in range(end)]
    nodes += [_Node(label, None, root) for label in places]
    nodes.append(_Node("all GPU events", None, None))
    for where, label, name, category, time_ns, count in grouped.iter_rows():
        nodes.append(_Node(name, category, where if where is not None else places[label], time_ns, count))
    # Kernels are behind all paths, and a path is behind the one above it; the root is above all.
    for node in [*reversed(nodes[root + 1 :]), *reversed(nodes[:root])]:
        if node.parent is not None:
            nodes[node.parent].time_ns += node.time_ns
            nodes[node.parent].count += node.count
    return Icicle(by, _pruned(nodes, root))


def paths(above: Ints, names: list[str]) -> tuple[Ints, list[int], list[int]]:
    """Items with the same names all the way up share a path: (the path of each item, for each path the one above it or -1, for
    each path the position of an item that has it). `above`: the position of the item around each, -1 at the top."""
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    named = np.array([codes[name] for name in names], dtype=np.int64)
    path = np.full(above.size, -1, dtype=np.int64)
    up: list[int] = []
    of: list[int] = []
    level = np.flatnonzero(above < 0)
    order = np.argsort(above, kind="stable")
    begins = np.searchsorted(above[order], np.arange(above.size), "left")
    ends = np.searchsorted(above[order], np.arange(above.size), "right")
    while level.size:
        parent = np.where(above[level] >= 0, path[above[level]], -1)
        key, first, number = np.unique((parent + 1) * len(codes) + named[level], return_index=True, return_inverse=True)
        path[level] = len(up) + number
        up += (key // len(codes) - 1).tolist()
        of += level[first].tolist()
        inside = level[ends[level] > begins[level]]
        level = np.concatenate([order[begins[k] : ends[k]] for k in inside]) if inside.size else inside
    return path, up, of


def _modules(trace: Trace) -> tuple[list[str], Ints, pl.Series]:
    frames = module_frames(trace)
    of_event, above = enclosing(trace, frames)
    names = classes(frames["name"].str.strip_prefix("nn.Module: ")).to_list()
    return names, above.fill_null(-1).to_numpy(), of_event


def _operators(trace: Trace) -> tuple[list[str], Ints, pl.Series]:
    calls = launching_calls(trace)
    is_op = (calls["kind"] == "cpu_op").to_numpy()
    caller = calls["caller"].to_numpy()
    around = np.where(caller >= 0, nearest(caller, is_op)[caller], -1) if caller.size else caller
    number = np.cumsum(is_op) - 1
    ops = np.flatnonzero(is_op)
    above = np.where(around[ops] >= 0, number[around[ops]], -1)
    of_event = pl.Series(number, dtype=pl.Int64).gather(classified(trace)["op"])
    return calls["name"].gather(ops).to_list(), above, of_event


def _call_sites(trace: Trace) -> tuple[list[str], Ints, pl.Series]:
    frames = launching_user_frames(trace)
    of_event, above = enclosing(trace, frames)
    return frames.select(place("name")).to_series().to_list(), above.fill_null(-1).to_numpy(), of_event


def _pruned(nodes: list[_Node], root: int) -> pl.DataFrame:
    """From the root down, the longest child first; children that cannot be seen become one."""
    children: dict[int, list[int]] = {}
    for k, node in enumerate(nodes):
        if node.parent is not None and node.time_ns > 0:
            children.setdefault(node.parent, []).append(k)
    least = nodes[root].time_ns * LEAST
    rows = [_Node("all GPU events", None, None, nodes[root].time_ns, nodes[root].count)]
    waiting = [(root, 0)]
    while waiting:
        at, row = waiting.pop()
        below = [nodes[k] for k in children.get(at, ())]
        for k in sorted(children.get(at, ()), key=lambda k: (-nodes[k].time_ns, nodes[k].name)):
            if nodes[k].time_ns >= least:
                waiting.append((k, len(rows)))
                rows.append(replace(nodes[k], parent=row))
        rest = [node for node in below if node.time_ns < least]
        if rest:
            rows.append(_Node(REST, None, row, sum(node.time_ns for node in rest), sum(node.count for node in rest)))
    schema = {"name": pl.String, "category": pl.String, "parent": pl.Int64, "time_ns": pl.Int64, "count": pl.Int64}
    return pl.DataFrame([astuple(row) for row in rows], schema=schema, orient="row")
