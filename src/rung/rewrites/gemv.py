"""Linear layers of one row, as decoding one token has them, by a Triton kernel (rung.kernels.gemv). What takes time there is reading the
weight, which the libraries' kernels do at a part of the memory's bandwidth. From two rows on theirs are as fast or faster, on matrix units."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rung.rewrites.activations import turned_layer
from rung.rewrites.cast_cache import NARROW
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.captured import transformed
from rung.rewrites.graph.normalize import kind, source_line, value
from rung.rewrites.horizontal_fusion import is_dense_input, projection

LEAST = 2**20  # elements of a weight: a smaller one is read in about the time that a launch takes


def one_row_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """F.linear(x, weight, bias) of one row in the weight's dtype, to which autocast casts x and the bias."""
    bias = None if bias is None else bias.to(weight.dtype)
    made: torch.Tensor = kernel_ops.operator("gemv")(x.to(weight.dtype), weight, bias)
    return made


one_row_linear.spells = "linear"  # type: ignore[attr-defined]  # to whoever counts products
one_row_linear.reads_only = True  # type: ignore[attr-defined]


def multiply_one_row(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such layer; how many, and why not others."""
    count, skipped, within = 0, [], transformed(graph)
    for node in list(graph.nodes):
        layer = projection(node) or turned_layer(node)
        if layer is None or not _one_row(node, layer):
            continue
        reason = "a transform of torch.func is in its graph" if within else _obstacle(node, *layer)
        if reason:
            skipped.append(f"linear at {source_line(node)}: {reason}")
        else:
            _rewrite(graph, node, layer)
            count += 1
    return count, skipped


def _one_row(node: fx.Node, layer: tuple[Any, Any, Any]) -> bool:
    """Whether the layer has one row, all sizes known, and nothing behind the product that its call computes as well."""
    made, x, weight = value(node), value(layer[0]), value(layer[1])
    if made is None or x is None or weight is None or weight.dim() != 2 or not node.users:
        return False
    if getattr(node.target, "spells", "") or not made.numel():
        return False
    return bool(made.numel() == made.shape[-1])


def _obstacle(node: fx.Node, x: Any, weight: Any, bias: Any) -> str:
    """Why the layer stays as it is; "" where it does not."""
    made, held = value(node), value(weight)
    assert made is not None
    assert held is not None
    if is_traceable_wrapper_subclass(held):
        return f"its weight is a {type(held).__name__}, not a plain tensor"
    if not is_dense_input(weight):
        return "its weight is computed in the graph"
    if kind(node) == "addmm" or held.stride(1) != 1:
        return "its weight does not lie in rows of one output each"
    if made.requires_grad:
        return "its kernel has no gradient"
    if held.dtype not in NARROW:
        return f"its weight is {str(held.dtype).removeprefix('torch.')}, and not in 16 bits"
    if made.dtype != held.dtype:
        return "its result has another dtype than its weight (autocast)"
    if held.numel() < LEAST:
        return f"its weight has {held.numel()} elements; from {LEAST} on, reading it is what takes time"
    if not made.is_contiguous():
        return "its result is not laid out in rows"
    return kernel_ops.obstacle(value(x), held, value(bias))


def _rewrite(graph: fx.Graph, node: fx.Node, layer: tuple[Any, Any, Any]) -> None:
    with graph.inserting_before(node):
        made = graph.call_function(one_row_linear, layer)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
