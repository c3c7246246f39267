"""A loop over experts, each of which computes the tokens that chose it, becomes grouped products (grouped_mm.py).

Each turn of it waits for the GPU to say how many tokens there are, and breaks the graph, unless Dynamo is told to go on
(`rung.engine.dynamo.data_dependent_sizes`).
"""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import Any

import torch
from torch import fx

from rung.rewrites.expert_loops import Left, Turn, read_loop, turn_of
from rung.rewrites.graph.normalize import source_line, value
from rung.rewrites.graph.writes import between
from rung.rewrites.grouped_mm import combine, expert_linear, sort_rows
from rung.rewrites.horizontal_fusion import projection
from rung.rewrites.packed_weights import packed_input


def group_experts(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such loop; how many, and why not others."""
    count, skipped = 0, []
    loops: dict[fx.Node, list[Turn]] = defaultdict(list)
    for node in graph.nodes:
        if turn := turn_of(node):
            loops[node.args[0]].append(turn)
    for out, turns in loops.items():
        inputs = graph.find_nodes(op="placeholder")
        try:
            _rewrite(graph, out, turns)
            count += 1
        except Left as left:
            for added in graph.find_nodes(op="placeholder")[len(inputs) :]:
                graph.erase_node(added)
            skipped.append(f"experts at {source_line(turns[0].made)}: {left}")
    return count, skipped


def _rewrite(graph: fx.Graph, out: fx.Node, turns: list[Turn]) -> None:
    last, (turns, bodies, own) = turns[-1].added, read_loop(out, turns)
    source, whole = value(turns[0].source), value(out)
    assert source is not None
    assert whole is not None
    layers = [k for k, node in enumerate(bodies[0]) if projection(node)]
    if not layers:
        raise Left("its experts have no linear layer")
    joined = {bodies[0][k]: _joined(graph, [body[k] for body in bodies], source.dtype) for k in layers}
    made = _emit(graph, last, turns[0], bodies[0], joined, len(turns), whole.dtype)
    made.meta = dict(out.meta)
    out.replace_all_uses_with(made, lambda user: user not in own)
    for node in sorted(own, reverse=True):
        graph.erase_node(node)
    for turn in turns:
        asked: fx.Node | None = turn.choice.where
        while asked is not None and asked is not turn.choice.chosen and not asked.users:
            graph.erase_node(asked)
            asked = next(iter(asked.all_input_nodes), None)
    graph.erase_node(out)


def _joined(graph: fx.Graph, layers: list[fx.Node], dtype: torch.dtype) -> tuple[fx.Node, fx.Node | None]:
    """The weights of one layer of all experts as one, and the biases."""
    read = [found for layer in layers if (found := projection(layer))]
    weights, biases = [r[1] for r in read], [r[2] for r in read if r[2] is not None]
    given = [value(weight) for weight in weights]
    if len({(w.shape, w.dtype) if w is not None else None for w in given}) > 1:
        raise Left("its experts are not alike")
    if given[0] is None or given[0].dtype != dtype:
        raise Left("its rows and weights have different dtypes")
    weight, bias = packed_input(graph, weights), packed_input(graph, biases) if biases else None
    if weight is None or (biases and bias is None):
        raise Left("the weights of its experts cannot be packed into one tensor")
    return weight, bias


def _emit(
    graph: fx.Graph, last: fx.Node, turn: Turn, body: list[fx.Node], layers: dict[fx.Node, Any], count: int, dtype: Any
) -> fx.Node:
    """The loop's result, made of the first expert's operations on the rows of all."""
    before = last.prev
    with graph.inserting_before(last):
        parts = graph.call_function(sort_rows, (turn.source, turn.choice.chosen, count))
        rows, ends, owner, places = (graph.call_function(operator.getitem, (parts, k)) for k in range(4))
        known: dict[fx.Node, fx.Node] = {turn.rows: rows}
        for node in body:
            if node in layers:
                read = projection(node)
                assert read is not None
                known[node] = graph.call_function(expert_linear, (known[read[0]], *layers[node], ends, owner))
            else:
                known[node] = graph.node_copy(node, known.__getitem__)
        made = graph.call_function(combine, (known[turn.made], places, turn.weights, dtype))
    for node in between(before, last):
        node.meta = {"stack_trace": turn.made.meta.get("stack_trace")}
    return made
