"""Equal computations in a graph: the mask that every layer works out for itself is one."""

from __future__ import annotations

from torch import fx
from torch.fx.node import map_aggregate

from rung.ladder.surgery.constants import COMPUTED
from rung.ladder.surgery.normalize import kind, value
from rung.ladder.surgery.writes import storage, written


def first_alike(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For every node that a pure computation ends in, the first of the graph that computes the same of the same inputs; nodes
    whose memory is written anywhere are left out."""
    touched = {storage(item) for node in graph.nodes for item in written(node)}
    known: dict[str, fx.Node] = {}
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if kind(node) not in COMPUTED or value(node) is None:
            continue
        if touched & {storage(item) for item in (node, *node.all_input_nodes)}:
            continue
        parts = map_aggregate(
            (node.args, node.kwargs), lambda leaf: f"#{found.get(leaf, leaf)}" if isinstance(leaf, fx.Node) else leaf
        )
        found[node] = known.setdefault(f"{node.op} {node.target} {parts}", node)
    return found
