"""Which activation follows a matrix product, told by what it computes and not by how it is written."""

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
    cast_source,
    kind,
    per_dimension,
    value,
)
from rung.rewrites.graph.writes import storage
from rung.rewrites.horizontal_fusion import is_dense_input, projection

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


@dataclass(frozen=True)
class Activation:
    """An activation as a function of numbers."""

    name: str
    of: Callable[[torch.Tensor], torch.Tensor]
    # How near another function is to it that is the same: relative, absolute.
    near: tuple[float, float] = (NEAR, NEAR_ZERO)

    @cached_property
    def at_points(self) -> torch.Tensor:
        return self.of(POINTS)


RELU = Activation("ReLU", F.relu, (0.0, 0.0))
TANH_GELU = Activation("GELU with tanh", lambda x: F.gelu(x, approximate="tanh"))
GELU = Activation("GELU", F.gelu)


def product_with_bias(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """(x, weight, bias) of a product with one bias a column; the weight of an `addmm` lies the other way."""
    if getattr(node.target, "spells", ""):
        return None  # it has an epilogue
    if read := projection(node):
        return read if read[2] is not None and is_dense_input(read[1]) else None
    if kind(node) == "conv2d":
        x, weight, bias = (argument(node, k, name) for k, name in enumerate(("input", "weight", "bias")))
        return (x, weight, bias) if bias is not None and _pointwise(node, value(weight)) else None
    return turned_layer(node)


def turned_layer(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """(x, weight, bias) of a linear layer as GPT-2 has it: an `addmm` with one bias a column, whose weight lies the other way."""
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


def activation_behind(
    product: fx.Node, wanted: tuple[Activation, ...]
) -> tuple[Activation, fx.Node, list[fx.Node]] | None:
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
        if not inside or value(node) is None or (kind(node) in CASTS and not widens(node, start)):
            return
        path.append(node)
        open_.remove(node)
        if not open_:
            yield node, path[:]
        open_ |= set(node.users)


def widens(node: fx.Node, start: fx.Node) -> bool:
    """Whether a cast loses nothing of the product, or gives what was computed in float32 the product's dtype again."""
    before, after = value(start), value(node)
    if cast_source(node) is None or before is None or after is None:
        return False
    if after.dtype == before.dtype:
        return True
    return after.dtype in (torch.float32, torch.float64) and after.element_size() >= before.element_size()


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
