"""What attention keeps for the backward pass, in memory of its own.

Queries, keys and values out of one product are parts of one tensor. Where rotary embedding writes queries and keys anew, the
values alone are read again in the backward pass, and as a part of it they keep the whole product alive: with as many
key heads as query heads three times what is needed. Copied, they keep themselves. As in recompute.py, this is for the joint graph.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from rung.rewrites.inductor_passes import base
from rung.rewrites.inductor_passes.base import VIEWS, aten, elementwise, is_item, size

PARTS = {aten.slice.Tensor, aten.select.int}
SPLITS = {*base.SPLITS, aten.unbind.int}
WHOLE = {*VIEWS, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim, aten.alias.default}
WORTH = 2  # parts are copied where the whole is so many times as large as all of them, or more


def backward_nodes(graph: fx.Graph) -> dict[fx.Node, None]:
    """What depends on the gradients that come into a joint graph."""
    backward: dict[fx.Node, None] = {}
    for node in graph.nodes:
        comes_in = node.op == "placeholder" and node.name.startswith("tangents")
        if node.op != "output" and (comes_in or any(n in backward for n in node.all_input_nodes)):
            backward[node] = None
    return backward


def copy_saved_parts(graph: fx.Graph) -> int:
    """Copy the parts that attention keeps where nothing else is read of the rest; how many."""
    backward = backward_nodes(graph)
    parts = {
        part: None
        for node in graph.nodes
        if "scaled_dot_product" in str(node.target) and node not in backward
        for operand in node.all_input_nodes
        if any(user in backward for user in operand.users) and (part := _part(operand)) is not None
    }
    copied = [
        part
        for part in parts
        if WORTH * sum(size(p) for p in parts if _whole(p) is _whole(part)) <= size(_whole(part))
        and not _kept_anyway(_whole(part), parts, backward)
    ]
    for part in copied:
        _copy(graph, part)
    return len(copied)


def _part(node: fx.Node) -> fx.Node | None:
    """Of what the operand is a view: the part of a tensor that the graph makes, if it is one."""
    while node.target in WHOLE and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    known = node.target in PARTS or _of_a_split(node)
    return node if known and _whole(node).op != "placeholder" else None


def _whole(node: fx.Node) -> fx.Node:
    """What holds the memory."""
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _kept_anyway(whole: fx.Node, parts: dict[fx.Node, None], backward: dict[fx.Node, None]) -> bool:
    """Whether the backward pass, or who called, has the tensor otherwise than through these parts: itself, or what is
    elementwise of it, which the backward pass may compute again."""
    todo, seen = [whole], set(parts)
    while todo:
        for user in todo.pop().users:
            if user.op == "output" or user in backward:
                return True
            if user not in seen and (_is_view(user) or elementwise(user)):
                seen.add(user)
                todo.append(user)
    return False


def _copy(graph: fx.Graph, part: fx.Node) -> None:
    with graph.inserting_after(part):
        copied = graph.call_function(aten.clone.default, (part,), {"memory_format": torch.contiguous_format})
    part.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)
    copied.meta = {k: v for k, v in part.meta.items() if k != "val"}
    copied.meta |= {"recompute": CheckpointPolicy.MUST_SAVE, "ac_graph_id": 0}
    # Strides of views of it are others now.
    todo = [copied]
    while todo:
        node = todo.pop()
        values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        node.meta["val"] = node.target(*values[0], **values[1])
        todo += [user for user in node.users if _is_view(user)]


def _is_view(node: fx.Node) -> bool:
    return node.target in PARTS | SPLITS | WHOLE or _of_a_split(node)


def _of_a_split(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    return is_item(node) and isinstance(source, fx.Node) and source.target in SPLITS
