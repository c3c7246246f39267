"""An activation behind a matrix product, computed as the product is written: ReLU, and GELU in its form with tanh. A convolution with windows of one
point is a product, too, where its images lie channels-last.

The libraries of both vendors have products that end so (cuBLASLt and hipBLASLt, "epilogues"). torch has them as
`torch._addmm_activation`, which nothing calls by itself, and Inductor writes the product, reads it in a kernel of its own and
writes it again. In between it is rounded to 16 bits, which an epilogue saves, too. It has no gradient: GELU between layers that train is
`gelu_between.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.activations import GELU, RELU, TANH_GELU, Activation, activation_behind, product_with_bias
from rung.rewrites.gelu_between import join_with_both
from rung.rewrites.graph.captured import transformed
from rung.rewrites.graph.kernel_ops import cast
from rung.rewrites.graph.normalize import called, kind, source_line, value


def linear_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """relu(F.linear(x, weight, bias)), in one kernel on a GPU. x: [..., K], weight: [N, K], bias: [N] -> [..., N]."""
    return _product(x, weight, bias, gelu=False)


def linear_tanh_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with gelu(approximate="tanh")."""
    return _product(x, weight, bias, gelu=True)


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with gelu, by its form with tanh where a GPU computes the product in bfloat16, and as it is defined elsewhere."""
    if x.is_cuda and cast(x).dtype == torch.bfloat16:
        return linear_tanh_gelu(x, weight, bias)
    return F.gelu(F.linear(x, weight, bias))


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gelu: bool) -> torch.Tensor:
    if not x.is_cuda:  # where torch's epilogue of that name is the other GELU
        made = F.linear(x, weight, bias)
        return F.gelu(made, approximate="tanh") if gelu else F.relu(made)
    x, weight, bias = cast(x), cast(weight), cast(bias)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return torch._addmm_activation(bias, rows, weight.t(), use_gelu=gelu).view(*x.shape[:-1], weight.shape[0])


def pointwise_tanh_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(F.conv2d(x, weight, bias), approximate="tanh") of a window of one point, which in channels-last layout is a matrix product. x:
    [B, K, H, W], weight: [N, K, 1, 1], bias: [N] -> [B, N, H, W]."""
    if _in_rows(x):
        return linear_tanh_gelu(x.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)
    return F.gelu(F.conv2d(x, weight, bias), approximate="tanh")


def pointwise_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with gelu as in `linear_gelu`."""
    if _in_rows(x):
        return linear_gelu(x.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)
    return F.gelu(F.conv2d(x, weight, bias))


def _in_rows(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


for _function, _spelled in (
    *((each, "linear") for each in (linear_relu, linear_tanh_gelu, linear_gelu)),
    *((each, "conv2d") for each in (pointwise_tanh_gelu, pointwise_gelu)),
):
    _function.spells = _spelled  # type: ignore[attr-defined]  # to whoever counts products and convolutions
    _function.reads_only = True  # type: ignore[attr-defined]


# Where the product is a linear layer's, and where it is that of a convolution (`convolution_epilogues.py` has those with ReLU).
_IN_ONE: dict[Activation, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor] | None]] = {
    RELU: (linear_relu, None),
    TANH_GELU: (linear_tanh_gelu, pointwise_tanh_gelu),
    GELU: (linear_gelu, pointwise_gelu),
}


def join_activations(graph: fx.Graph) -> tuple[int, list[str]]:
    """ReLU, and GELU in its form with tanh, behind a product: how many were joined with it, and why not others."""
    return _join_all(graph, RELU, TANH_GELU)


def join_gelu(graph: fx.Graph) -> tuple[int, list[str]]:
    """GELU as it is defined, which its form with tanh stands for in bfloat16."""
    return _join_all(graph, GELU)


def _join_all(graph: fx.Graph, *wanted: Activation) -> tuple[int, list[str]]:
    count, skipped, within = 0, [], transformed(graph)
    for node in list(graph.nodes):
        product = None if node._erased else product_with_bias(node)
        found = product and activation_behind(node, wanted)
        if not product or not found:
            continue
        activation, last, path = found
        linear, pointwise = _IN_ONE[activation]
        function = pointwise if kind(node) == "conv2d" else linear
        if function is None:
            continue
        if within:
            reason = "a transform of torch.func is in its graph"
        elif (made := value(node)) is not None and made.requires_grad:
            reason = join_with_both(graph, node, product, activation, last, path)
        elif not (reason := _obstacle(node, last, path)):
            _rewrite(graph, node, product, function, last, path)
        if reason:
            skipped.append(f"{activation.name} at {source_line(last)}: {reason}")
        else:
            count += 1
    return count, skipped


def _obstacle(product: fx.Node, last: fx.Node, path: list[fx.Node]) -> str:
    made, end = value(product), value(last)
    if made is None or end is None or not made.numel():
        return "its size is not known"
    start = value(path[0])
    if start is None or (start.shape, start.stride(), start.device) != (end.shape, end.stride(), end.device):
        return "its result lies otherwise than the product"
    return "" if kind(product) == "conv2d" or made.is_contiguous() else "its result is not laid out in rows"


def _rewrite(
    graph: fx.Graph,
    node: fx.Node,
    product: tuple[Any, Any, Any],
    function: Callable[..., torch.Tensor],
    last: fx.Node,
    path: list[fx.Node],
) -> None:
    x, weight, bias = product
    before, after = value(path[0]), value(last)
    with graph.inserting_before(node):
        if kind(node) == "addmm":
            weight = called(graph, "t", weight)
        made = graph.call_function(function, (x, weight, bias))
    made.meta = dict(node.meta)
    result = made if path[0] is node else path[0]
    node.replace_all_uses_with(made)
    # Written out under autocast, it may be in float32.
    if before is not None and after is not None and before.dtype != after.dtype:
        with graph.inserting_before(last):
            result = called(graph, "to", result, after.dtype)
        result.meta["stack_trace"] = last.meta.get("stack_trace")
    last.replace_all_uses_with(result)
    for one in (*reversed(path[1:]), node):
        graph.erase_node(one)
