"""GELU between two linear layers that train: it, and its derivative, are computed as products are written.

The operators are in `kernels/families/gelu.py`. What is joined is all three together, since GELU's derivative belongs to the product that goes
back through the second layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.kernels.families import gelu
from rung.rewrites.activations import GELU, TANH_GELU, Activation, turned_layer, widens
from rung.rewrites.graph.kernel_ops import cast
from rung.rewrites.graph.normalize import VIEWS, argument, cast_source, kind, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode
from rung.rewrites.horizontal_fusion import is_dense_input, projection

# Numbers in 16 bytes, which products on matrix units read at once. Inductor pads what is not aligned, and cannot pad what it does not see.
ALIGNED = 8


def tanh_gelu_between(
    x: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    down_bias: torch.Tensor | None,
    turned: tuple[bool, bool],
) -> torch.Tensor:
    """Two linear layers with gelu(approximate="tanh") in between, in 16 bits by `gelu.gelu_between`. x: [..., K], up: [N, K], down: [P, N],
    their biases [N] and [P] -> [..., P]. turned: whether up and down lie the other way."""
    if cast(x).dtype not in (torch.float16, torch.bfloat16) or not x.numel():
        return _apart("tanh", x, up, up_bias, down, down_bias, turned)
    rows = cast(x.reshape(-1, x.shape[-1]))
    made = gelu.gelu_between(
        rows, cast(up), cast(up_bias), cast(down), None if down_bias is None else cast(down_bias), turned
    )
    return made.view(*x.shape[:-1], made.shape[-1])


def gelu_between(x: torch.Tensor, *layers: Any) -> torch.Tensor:
    """The same with gelu, by its form with tanh where products are in bfloat16, and as it is defined elsewhere."""
    if cast(x).dtype == torch.bfloat16:
        return tanh_gelu_between(x, *layers)
    return _apart("none", x, *layers)


def _apart(
    approximate: str,
    x: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    down_bias: torch.Tensor | None,
    turned: tuple[bool, bool],
) -> torch.Tensor:
    up, down = (weight.t() if other else weight for weight, other in zip((up, down), turned, strict=True))
    return F.linear(F.gelu(F.linear(x, up, up_bias), approximate=approximate), down, down_bias)


BETWEEN: dict[Activation, Callable[..., torch.Tensor]] = {TANH_GELU: tanh_gelu_between, GELU: gelu_between}

for _function in BETWEEN.values():
    _function.reads_only = True  # type: ignore[attr-defined]


def join_with_both(
    graph: fx.Graph,
    node: fx.Node,
    product: tuple[Any, Any, Any],
    activation: Activation,
    last: fx.Node,
    path: list[fx.Node],
) -> str:
    """Joins a product, the activation behind it and the linear layer that reads that; why not, where it does not."""
    x, up, up_bias = product
    function = BETWEEN.get(activation)
    if function is None or kind(node) == "conv2d":
        return "it needs a gradient, for which there is no epilogue"
    passed = _passed_on(last, node)
    down = next(iter(passed[-1].users)) if len(passed[-1].users) == 1 else None
    read = _linear(down, passed[-1]) if down is not None else None
    if down is None or read is None:
        return "it needs a gradient, and what reads it is not one linear layer"
    weight, bias = read
    if reason := _obstacle(node, down, (x, up, up_bias, weight, bias)):
        return reason
    turned = kind(node) == "addmm", kind(down) == "addmm"
    with graph.inserting_before(down):
        made = graph.call_function(function, (x, up, up_bias, weight, bias, turned))
    made.meta = dict(down.meta)
    down.replace_all_uses_with(made)
    for one in (down, *reversed([*_views(node, path[0]), *path[1:], *passed[1:]])):
        graph.erase_node(one)
    return ""


def _views(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """A node, and its views up to the last, each of which has no other reader."""
    found = [first]
    while found[-1] is not last:
        found.append(next(iter(found[-1].users)))
    return found


def _passed_on(node: fx.Node, product: fx.Node) -> list[fx.Node]:
    """The node, and what hands it on as it is: views that keep its rows, dropout that is off, the product's dtype or a wider one."""
    passed = [node]
    while len(node.users) == 1:
        user = next(iter(node.users))
        before, after = value(node), value(user)
        if before is None or after is None or before.shape[-1:] != after.shape[-1:]:
            break
        off = kind(user) == "dropout" and (
            argument(user, 1, "p", default=0.5) == 0 or argument(user, 2, "training", default=True) is False
        )
        view = kind(user) in VIEWS and before.dtype == after.dtype
        if not off and not view and not (cast_source(user) is node and widens(user, product)):
            break
        passed.append(node := user)
    return passed


def _linear(node: fx.Node, source: fx.Node) -> tuple[Any, Any] | None:
    """(weight, bias or none) of a linear layer that reads `source`; the weight of an `addmm` lies the other way."""
    if getattr(node.target, "spells", ""):
        return None
    read = projection(node) or turned_layer(node)
    return read[1:] if read and read[0] is source and is_dense_input(read[1]) else None


def _obstacle(node: fx.Node, down: fx.Node, read: tuple[Any, ...]) -> str:
    x, first, second = value(read[0]), value(node), value(down)
    if x is None or first is None or second is None or not second.numel():
        return "its size is not known"
    if second.shape[:-1] != x.shape[:-1] or second.dtype != first.dtype:
        return "it needs a gradient, and the layers around it have other rows, or are of two dtypes"
    if any(size % ALIGNED for size in (x.shape[-1], first.shape[-1], second.shape[-1])):
        return f"it needs a gradient, and a size of the layers around it is no multiple of {ALIGNED}"
    memory = {storage(each) for each in read if each is not None}
    for one in between(node, down):
        if switches_mode(one):
            return f"autocast, or whether gradients are wanted, changes between both layers, at {source_line(one)}"
        if may_touch(one, memory):
            return f"what the first layer reads is written to before the second, at {source_line(one)}"
    return ""
