"""An activation behind a matrix product, computed as the product is written: ReLU, and GELU in its form with tanh. A convolution with windows of one
point is a product, too, where its images lie channels-last.

The libraries of both vendors have products that end so (cuBLASLt and hipBLASLt, "epilogues"). torch has them as
`torch._addmm_activation`, which nothing calls by itself, and Inductor writes the product, reads it in a kernel of its own and
writes it again. In between it is rounded to 16 bits, which an epilogue saves, too. There is no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.graph.normalize import (
    CASTS,
    ELEMENTWISE,
    VIEWS,
    argument,
    called,
    cast_source,
    kind,
    per_dimension,
    source_line,
    value,
)
from rung.rewrites.graph.writes import storage
from rung.rewrites.siblings import plain, projection

LONGEST = 16  # operations of an activation; GELU written out has ten at most


def _points() -> torch.Tensor:
    """Numbers at which functions are told apart: close to one another, close to zero, and far out, where a cap shows."""
    middle = torch.linspace(-12.0, 12.0, 4801, dtype=torch.float64, device="cpu")
    scales = torch.logspace(-45.0, 38.5, 335, dtype=torch.float64, device="cpu")
    others = torch.tensor([-0.0, math.inf, -math.inf, math.nan], dtype=torch.float64, device="cpu")
    return torch.cat([middle, scales, -scales, others])


POINTS = _points()
# The constants that people write have eight digits. The two forms of GELU are up to 4.7e-4 apart.
NEAR, NEAR_ZERO = 1e-6, 1e-7


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


def cast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast casts what a product reads, for operators that it does not know."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device) and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


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


@dataclass(frozen=True)
class _Activation:
    """What is computed of a product, as a function of numbers, and what computes both: where the product is a linear layer's, and where it is
    that of a convolution (`convolution_epilogues.py` has those with ReLU)."""

    name: str
    of: Callable[[torch.Tensor], torch.Tensor]
    near: tuple[float, float]  # how near another function is to it that is the same: relative, absolute
    linear: Callable[..., torch.Tensor]
    pointwise: Callable[..., torch.Tensor] | None

    @cached_property
    def at_points(self) -> torch.Tensor:
        return self.of(POINTS)


_SAME = (
    _Activation("ReLU", F.relu, (0.0, 0.0), linear_relu, None),
    _Activation(
        "GELU with tanh",
        lambda x: F.gelu(x, approximate="tanh"),
        (NEAR, NEAR_ZERO),
        linear_tanh_gelu,
        pointwise_tanh_gelu,
    ),
)
_NEARLY = (_Activation("GELU", F.gelu, (NEAR, NEAR_ZERO), linear_gelu, pointwise_gelu),)


def join_activations(graph: fx.Graph) -> tuple[int, list[str]]:
    """ReLU, and GELU in its form with tanh, behind a product: how many were joined with it, and why not others."""
    return _join_all(graph, _SAME)


def join_gelu(graph: fx.Graph) -> tuple[int, list[str]]:
    """GELU as it is defined, which its form with tanh stands for in bfloat16."""
    return _join_all(graph, _NEARLY)


def _join_all(graph: fx.Graph, wanted: tuple[_Activation, ...]) -> tuple[int, list[str]]:
    count, skipped = 0, []
    for node in list(graph.nodes):
        product = None if node._erased else _product_with_bias(node)
        found = product and _found(node, wanted)
        if not product or not found or (kind(node) == "conv2d" and found[0].pointwise is None):
            continue
        activation, last, path = found
        if reason := _obstacle(node, last, path):
            skipped.append(f"{activation.name} at {source_line(last)}: {reason}")
        else:
            _rewrite(graph, node, product, activation, last, path)
            count += 1
    return count, skipped


def _product_with_bias(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """(x, weight, bias) of a product with one bias a column; the weight of an `addmm` lies the other way."""
    if getattr(node.target, "spells", ""):
        return None  # it has an epilogue
    if read := projection(node):
        return read if read[2] is not None and plain(read[1]) else None
    if kind(node) == "conv2d":
        x, weight, bias = (argument(node, k, name) for k, name in enumerate(("input", "weight", "bias")))
        return (x, weight, bias) if bias is not None and _pointwise(node, value(weight)) else None
    if kind(node) != "addmm" or len(node.args) != 3 or node.kwargs:
        return None
    bias, rows, matrix = node.args
    held, columns = value(bias), value(matrix)
    if held is None or columns is None or held.shape != columns.shape[1:]:
        return None
    return rows, matrix, bias


def _pointwise(node: fx.Node, weight: torch.Tensor | None) -> bool:
    made = value(node)
    if weight is None or made is None or made.dim() != 4 or weight.shape[2:] != (1, 1):
        return False
    rest = [argument(node, k, name, default=default) for k, name, default in ((3, "stride", 1), (4, "padding", 0))]
    plain = [per_dimension(2, each) for each in rest] == [(1, 1), (0, 0)] or (
        rest[1] == "valid" and per_dimension(2, rest[0]) == (1, 1)
    )
    return plain and argument(node, 6, "groups", default=1) == 1


def _found(product: fx.Node, wanted: tuple[_Activation, ...]) -> tuple[_Activation, fx.Node, list[fx.Node]] | None:
    """The activation behind a product, the node that has its value, and the nodes that compute it."""
    for last, path in _ends(_viewed(product)):
        got = _at_points(path)
        for activation in wanted if got is not None else ():
            rtol, atol = activation.near
            if torch.allclose(got, activation.at_points, rtol=rtol, atol=atol, equal_nan=True):
                return activation, last, path
    return None


def _viewed(node: fx.Node) -> fx.Node:
    """The product as it is read: an activation of its view is the view of its activation."""
    while len(node.users) == 1:
        user, before = next(iter(node.users)), value(node)
        after = value(user)
        if kind(user) not in VIEWS or before is None or after is None or before.dtype != after.dtype:
            break
        node = user
    return node


def _ends(start: fx.Node) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Each node that all of what is made of a value goes through, where only numbers take part, with the nodes up to it. The
    first of these is the value itself."""
    path, open_ = [start], set(start.users)
    while open_ and len(path) <= LONGEST:
        node = min(open_)
        inside = kind(node) in ELEMENTWISE - {"dropout"} and all(item in path for item in node.all_input_nodes)
        if not inside or value(node) is None or (kind(node) in CASTS and not _widens(node, start)):
            return
        path.append(node)
        open_.remove(node)
        if not open_:
            yield node, path[:]
        open_ |= set(node.users)


def _widens(node: fx.Node, start: fx.Node) -> bool:
    """Whether a cast loses nothing of the product, or gives what was computed in float32 the product's dtype again."""
    before, after = value(start), value(node)
    if cast_source(node) is None or before is None or after is None:
        return False
    return after.dtype in (before.dtype, torch.float32, torch.float64)


def _at_points(path: list[fx.Node]) -> torch.Tensor | None:
    """What the nodes compute of `POINTS`; None where they cannot be asked."""
    held = {path[0]: POINTS.clone()}
    try:
        with torch.no_grad():
            for node in path[1:]:
                held[node] = _computed(node, held)
    except Exception:  # an operation with other arguments than numbers
        return None
    made = held[path[-1]]
    return made if made.shape == POINTS.shape and made.dtype == POINTS.dtype else None


def _computed(node: fx.Node, held: dict[fx.Node, torch.Tensor]) -> torch.Tensor:
    if kind(node) in (*CASTS, "contiguous"):
        source = node.all_input_nodes[0]
        return held[source] if storage(node) == storage(source) else held[source].clone()
    arguments = fx.map_arg(node.args, held.__getitem__)
    options = fx.map_arg(node.kwargs, held.__getitem__)
    if node.op == "call_method":
        made = getattr(arguments[0], str(node.target))(*arguments[1:], **options)
    else:
        made = node.target(*arguments, **options)
    assert isinstance(made, torch.Tensor)
    return made


def _obstacle(product: fx.Node, last: fx.Node, path: list[fx.Node]) -> str:
    made, end = value(product), value(last)
    if made is None or end is None or not made.numel():
        return "its size is not known"
    if made.requires_grad:
        return "it needs a gradient"
    start = value(path[0])
    if start is None or (start.shape, start.stride(), start.device) != (end.shape, end.stride(), end.device):
        return "its result lies otherwise than the product"
    return "" if kind(product) == "conv2d" or made.is_contiguous() else "its result is not laid out in rows"


def _rewrite(
    graph: fx.Graph,
    node: fx.Node,
    product: tuple[Any, Any, Any],
    activation: _Activation,
    last: fx.Node,
    path: list[fx.Node],
) -> None:
    x, weight, bias = product
    before, after = value(path[0]), value(last)
    with graph.inserting_before(node):
        if kind(node) == "addmm":
            weight = called(graph, "t", weight)
        function = activation.pointwise if kind(node) == "conv2d" else activation.linear
        assert function is not None
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
