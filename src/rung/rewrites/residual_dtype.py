"""The residual stream in bfloat16.

Under autocast an embedding, a norm and whatever else is no matrix product gives float32, and ``x + branch(x)`` stays
float32 through all layers: every norm and every residual moves twice the bytes. Here each sum of a float32 value and a
bfloat16 one is taken in bfloat16 (computed in float32, rounded once, as one addition is). What reads a sum reads it
widened again, so that norms and their statistics compute in float32 as before. Gradients of the stream are bfloat16, too.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import fx

from rung.rewrites.graph.captured import is_weight
from rung.rewrites.graph.normalize import argument, in_place, kind, source_line, value
from rung.rewrites.graph.writes import storage, written

NARROW, WIDE = torch.bfloat16, torch.float32


def narrow_residuals(graph: fx.Graph) -> tuple[int, list[str]]:
    """Take every sum of float32 and bfloat16 in bfloat16; how many, and why not others."""
    sums, skipped = [node for node in graph.nodes if wide_sum(node)], []
    memory: dict[int | None, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        memory[storage(node)].append(node)
    while refused := {node: reason for node in sums if (reason := _obstacle(node, sums, memory))}:
        skipped += [f"addition at {source_line(node)}: {reason}" for node, reason in refused.items()]
        sums = [node for node in sums if node not in refused]
    narrow: dict[fx.Node, fx.Node] = {}
    for node in sums:
        _narrow(graph, node, narrow)
    for node in reversed(sums):
        _widen(graph, node, narrow[node])
    return len(sums), skipped


def summands(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(a, b) where the node is the sum of two floating activations of one shape."""
    made = value(node)
    if made is None or kind(node) != "add" or set(node.kwargs) - {"input", "other", "alpha"}:
        return None
    pair = argument(node, 0, "input"), argument(node, 1, "other")
    for item in pair:
        known = value(item)
        if known is None or known.shape != made.shape or not known.dtype.is_floating_point or is_weight(item):
            return None
    return pair


def wide_sum(node: fx.Node) -> bool:
    """A float32 value and a bfloat16 one added in float32."""
    pair, made = summands(node), value(node)
    if pair is None or made is None or made.dtype != WIDE:
        return False
    return {item.meta["example_value"].dtype for item in pair} == {NARROW, WIDE}


def _obstacle(node: fx.Node, sums: list[fx.Node], memory: dict[int | None, list[fx.Node]]) -> str:
    wide = [item for item in (node, *(summands(node) or ())) if item.meta["example_value"].dtype == WIDE]
    homes = {storage(item) for item in wide}
    if None in homes:
        return "the memory of one of its operands is unknown"
    held = [other for home in homes for other in memory[home]]
    writers = {user for item in held for user in item.users if homes & {storage(w) for w in written(user)}}
    if writers - {other for other in sums if in_place(other)}:
        return "one of its operands, or its result, is written in place"
    if in_place(node):
        # Out of place, the old value stays where it was: nobody may look there for the new one, here or afterwards.
        before = [item for item in memory[storage(node)] if item < node]
        if any(item.op in ("placeholder", "get_attr") for item in before):
            return "it changes an input in place"
        if any(node < user for item in before for user in item.users):
            return "its result is read through the tensor that it was written to"
    return ""


def _narrow(graph: fx.Graph, node: fx.Node, narrow: dict[fx.Node, fx.Node]) -> None:
    pair = summands(node)
    assert pair is not None
    with graph.inserting_before(node):
        for item in pair:
            if item not in narrow and item.meta["example_value"].dtype == WIDE:
                narrow[item] = _with_meta_of(graph.call_method("to", (item, NARROW)), item, NARROW)
        options = {"alpha": node.kwargs["alpha"]} if "alpha" in node.kwargs else {}
        made = graph.call_function(torch.add, tuple(narrow.get(item, item) for item in pair), options)
    narrow[node] = _with_meta_of(made, node, NARROW)


def _widen(graph: fx.Graph, node: fx.Node, made: fx.Node) -> None:
    if node.users:
        with graph.inserting_before(node):
            wide = graph.call_method("to", (made, WIDE))
        node.replace_all_uses_with(wide)
        wide.meta = dict(node.meta)
    graph.erase_node(node)


def _with_meta_of(made: fx.Node, like: fx.Node, dtype: torch.dtype) -> fx.Node:
    made.meta = {**like.meta, "example_value": like.meta["example_value"].to(dtype)}
    return made
