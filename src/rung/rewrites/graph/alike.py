"""Equal computations in a graph: the mask that every layer works out for itself is one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx
from torch.fx.node import map_aggregate

from rung.rewrites.graph.constants import COMPUTED
from rung.rewrites.graph.normalize import kind, value
from rung.rewrites.graph.writes import storage, written


def _spelled(node: fx.Node, known: Mapping[fx.Node, fx.Node]) -> str:
    """What a node computes, its inputs by what is known of them: equal for equal computations, where what is known is."""
    parts = map_aggregate(
        (node.args, node.kwargs), lambda leaf: f"#{known.get(leaf, leaf)}" if isinstance(leaf, fx.Node) else leaf
    )
    return f"{node.op} {node.target} {parts}"


def first_alike(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For every node that a pure computation ends in, the first of the graph that computes the same of the same inputs; nodes
    whose memory is written anywhere are left out."""
    touched = {storage(item) for node in graph.nodes for item in written(node)}
    known: dict[str, fx.Node] = {}
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        tensor = value(node)
        if kind(node) not in COMPUTED or tensor is None:
            continue
        if touched & {storage(item) for item in (node, *node.all_input_nodes)}:
            continue
        found[node] = known.setdefault(f"{tensor.dtype} {_spelled(node, found)}", node)
    return found
