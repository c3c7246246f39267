"""Rows that are written into a part of a cache: ``cache[:batch].index_copy_(2, position, keys)``.

AOTAutograd makes the graph functional, and what it makes of a write to a view is a new cache. Inductor turns a write to a
whole buffer back into one in place, but not one to a part of it: the part is copied out, written and copied back, twice its
bytes read and twice its bytes written for every token. Said as one write to the whole buffer, it is a write of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rung.rewrites.graph.normalize import argument, in_place, kind, source_line, value


@dataclass(frozen=True)
class _Write:
    """base[window][..., index at dim, ...] = rows; window: the places of the buffer's leading dimensions."""

    base: fx.Node
    window: list[range]
    dim: int
    index: fx.Node
    rows: fx.Node


def write_in_place(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such write; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        write = _write(node)
        if isinstance(write, _Write):
            _rewrite(graph, node, write)
            count += 1
        elif write:
            skipped.append(f"write at {source_line(node)}: {write}")
    return count, skipped


def _write(node: fx.Node) -> _Write | str:
    """What a node writes; "" where it is no write to a part of a buffer, otherwise why it is left."""
    if kind(node) == "index_copy" and in_place(node):
        view, dim = argument(node, 0, "input", "self"), argument(node, 1, "dim")
        index, rows = argument(node, 2, "index"), argument(node, 3, "source")
        if kind(view) != "getitem" or not isinstance(dim, int):
            return ""
        base, cuts = view.args[0], _cuts(view.args[1])
        dim %= max(1, len(shape.shape) if (shape := value(base)) is not None else 1)
    elif kind(node) == "setitem" and len(node.args) == 3:
        view, (base, cuts, rows) = None, (node.args[0], _cuts(node.args[1]), node.args[2])
        spots = [k for k, cut in enumerate(cuts) if isinstance(cut, fx.Node)]
        if len(spots) != 1:
            return ""
        dim, index = spots[0], cuts[spots[0]]
        cuts = [slice(None) if isinstance(cut, fx.Node) else cut for cut in cuts]
    else:
        return ""
    whole, places, given = value(base), value(index), value(rows)
    if whole is None or places is None or given is None or base.op != "placeholder" or len(cuts) > whole.dim():
        return ""
    if places.dim() != 1 or places.dtype not in (torch.int32, torch.int64):  # bytes are a mask, as bools are
        return ""
    if not all(isinstance(cut, slice) and _plain(cut) for cut in cuts):
        return ""
    window = [range(size)[cut] for size, cut in zip(whole.shape, cuts, strict=False)]
    partial = [k for k, places in enumerate(window) if len(places) < whole.shape[k]]
    if not partial or not all(map(len, window)):
        return ""  # a write to the whole of it is one in place already; one to nothing is none
    if whole.requires_grad or given.requires_grad:
        return "a gradient flows through it"
    window += [range(size) for size in whole.shape[len(window) :]]
    wanted = [len(places) if k == dim else len(part) for k, part in enumerate(window)]
    if list(given.shape) != wanted or given.dtype != whole.dtype:
        return "what is written has another shape or dtype than its place"
    return _Write(base, window[: max(dim, *partial) + 1], dim, index, rows)


def _cuts(index: Any) -> Sequence[Any]:
    return list(index) if isinstance(index, (tuple, list)) else [index]


def _plain(cut: slice) -> bool:
    return cut.step in (None, 1) and all(end is None or isinstance(end, int) for end in (cut.start, cut.stop))


def _rewrite(graph: fx.Graph, node: fx.Node, write: _Write) -> None:
    whole = value(write.base)
    assert whole is not None
    before = node.prev
    with graph.inserting_before(node):
        places: list[fx.Node] = []
        for k, part in enumerate(write.window):
            spread = [1] * len(write.window)
            spread[k] = -1
            if k != write.dim:
                place = graph.call_function(torch.arange, (part.start, part.stop), {"device": whole.device})
            elif part.start:
                place = graph.call_function(torch.add, (write.index, part.start))
            else:
                place = write.index
            places.append(graph.call_method("reshape", (place, *spread)))
        made = graph.call_method("index_put_", (write.base, tuple(places), write.rows))
    while made is not before:
        made.meta["stack_trace"] = node.meta.get("stack_trace")
        made = made.prev
    if node.users:  # index_copy_ returns the view that it wrote
        node.replace_all_uses_with(node.args[0])
    graph.erase_node(node)
