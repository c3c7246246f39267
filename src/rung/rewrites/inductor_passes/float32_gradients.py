"""Gradients of weights in float32, straight from their products.

Under autocast a product gives its weight's gradient in bfloat16, and a kernel reads it and writes it widened: 8 bytes
moved for each weight, where the product itself can write the float32 that it sums in: 4 bytes, and no rounding.
This is a pass on Inductor's graphs, forward and backward, because only there gradients are nodes.
"""

from __future__ import annotations

import torch
from torch import fx

from rung.rewrites.inductor_passes.base import HALF, SPLITS, VIEWS, InductorPass, aten, is_item, prims

PARTS = {*VIEWS, *SPLITS, aten.slice.Tensor}


class Float32Gradients(InductorPass):
    """For `torch._inductor.config.post_grad_custom_post_pass`."""

    def __call__(self, graph: fx.Graph) -> None:
        widen_products(graph)


def widen_products(graph: fx.Graph) -> int:
    """Let every product of half precision on a GPU that only leaves the graph widened to float32 write float32; how many."""
    count = 0
    for cast in graph.find_nodes(op="call_function", target=prims.convert_element_type.default):
        path = _down_to_product(cast)
        if path and cast.args[1] == torch.float32 and _only_leaves(cast):
            _widen(graph, cast, path)
            count += 1
    return count


def _down_to_product(cast: fx.Node) -> list[fx.Node]:
    """The views between a cast and the product that it widens, and the product last; empty where there is none."""
    path: list[fx.Node] = []
    node = cast.args[0]
    while isinstance(node, fx.Node) and len(node.users) == 1:
        path.append(node)
        if node.target is aten.mm.default:
            made = node.meta.get("val")
            fits = isinstance(made, torch.Tensor) and made.is_cuda and made.dtype in HALF
            return path if fits and not node.kwargs else []
        if node.target not in VIEWS:
            return []
        node = node.args[0]
    return []


def _only_leaves(node: fx.Node) -> bool:
    """Whether a value goes out of the graph and nowhere else, whole or in parts: what is read inside is read faster in half precision."""
    return bool(node.users) and all(
        user.op == "output" or ((user.target in PARTS or is_item(user)) and _only_leaves(user)) for user in node.users
    )


def _widen(graph: fx.Graph, cast: fx.Node, path: list[fx.Node]) -> None:
    *views, product = path
    with graph.inserting_before(product):
        made = graph.call_function(aten.mm.dtype, (*product.args, torch.float32))
    made.meta = dict(product.meta)
    product.replace_all_uses_with(made)
    graph.erase_node(product)
    for node in (made, *views):
        node.meta["val"] = node.meta["val"].to(torch.float32)
    source = cast.args[0]
    assert isinstance(source, fx.Node)
    cast.replace_all_uses_with(source)
    graph.erase_node(cast)
