"""Finds rotary embeddings, however they are written.

One is not recognised by its spelling. A few nodes with one input of the result's shape and two tables are computed for one
row of random numbers in float64, and are a rotary embedding where that is what the reference gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from rung.kernels import reference
from rung.rewrites.graph.normalize import cast_source, in_place, kind, names, value

_ENDS = names("add sub cat view reshape flatten")
_REGROUP = names("view reshape flatten unflatten")
_SAME = names("contiguous clone to type type_as float half bfloat16 double")
_STEPS = names("mul add sub neg cat stack getitem chunk split unbind unsqueeze view_as_complex view_as_real")
_DEEPEST, _MOST = 10, 40  # the longest spelling is complex numbers in float32: 9 nodes


@dataclass(frozen=True)
class Rotation:
    """out: its last node; x: what is turned; inner: the nodes from x to out; tables: (cos, sin), or the two as one
    complex tensor; negative: turned the other way round."""

    out: fx.Node
    x: fx.Node
    inner: list[fx.Node]
    tables: tuple[fx.Node, ...]
    interleaved: bool
    negative: bool


def rotation(out: fx.Node) -> Rotation | None:
    """The rotary embedding that ends at this node."""
    result = value(out) if kind(out) in _ENDS else None
    if result is None or result.dim() not in (3, 4) or result.shape[-1] % 2 or not result.dtype.is_floating_point:
        return None
    above = _above(out)
    for x in above[1:]:
        tensor = value(x)
        if tensor is None or tensor.shape != result.shape or not tensor.dtype.is_floating_point:
            continue
        inner = _between(out, x, above)
        tables = _tables(inner, x) if inner else None
        turned = _turned(out, x, inner, tables) if tables else None
        if turned and tables:
            interleaved, swapped, negative = turned
            return Rotation(out, x, inner, tables[::-1] if swapped else tables, interleaved, negative)
    return None


def _step(node: fx.Node) -> bool:
    what = kind(node)
    if in_place(node) or "out" in node.kwargs:
        return False
    return what in _STEPS or what in _REGROUP or (what in _SAME and _same(node))


def _same(node: fx.Node) -> bool:
    return kind(node) in ("contiguous", "clone") or cast_source(node) is not None


def _above(out: fx.Node) -> list[fx.Node]:
    """The node and what leads to it by steps that a rotation may consist of, nearest first."""
    found, level = [out], [out]
    for _ in range(_DEEPEST):
        level = [item for node in level if _step(node) for item in node.all_input_nodes if item not in found]
        level = list(dict.fromkeys(level))
        found += level
        if not level or len(found) > _MOST:
            break
    return found


def _between(out: fx.Node, x: fx.Node, above: list[fx.Node]) -> list[fx.Node]:
    """The nodes that lead from x to out, in graph order; none where one of them is no step."""
    inside: list[fx.Node] = []
    for node in sorted(above):
        if node is not x and any(item is x or item in inside for item in node.all_input_nodes):
            inside.append(node)
    return inside if out in inside and all(_step(node) for node in inside) else []


def _tables(inner: list[fx.Node], x: fx.Node) -> tuple[fx.Node, ...] | None:
    outside = [item for node in inner for item in node.all_input_nodes if item is not x and item not in inner]
    found = tuple(dict.fromkeys(_unsigned(item) for item in outside))
    shapes = [value(item) for item in found]
    half = value(x).shape[-1] // 2  # type: ignore[union-attr]
    if any(t is None or not t.dim() or t.shape[-1] not in (half, 2 * half) for t in shapes):
        return None
    if len({t.shape[-1] for t in shapes if t is not None}) > 1:
        return None  # sums and products of something else: a cosine and its sine have one width
    is_complex = [t.is_complex() for t in shapes if t is not None]
    return found if is_complex in ([False, False], [True]) else None


def _unsigned(node: fx.Node) -> fx.Node:
    return node.args[0] if kind(node) == "neg" and node.args and isinstance(node.args[0], fx.Node) else node


def _turned(
    out: fx.Node, x: fx.Node, inner: list[fx.Node], tables: tuple[fx.Node, ...]
) -> tuple[bool, bool, bool] | None:
    """(interleaved, tables are sin and cos, the other way round) where these nodes turn x by the tables."""
    with _disable_current_modes(), torch.no_grad(), torch.device("cpu"):
        try:
            rows = [_row(item, k) for k, item in enumerate((x, *tables))]
            got = _computed(out, x, inner, dict(zip((x, *tables), rows, strict=True)))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return None  # something else is computed here, which one row cannot go through
        vector, *pair = (row.reshape(1, 1, 1, -1) for row in rows)
        pair = [pair[0].real, pair[0].imag] if len(pair) == 1 else pair
        for interleaved in (False, True):
            for swapped in (False, True):
                cos, sin = (item[0] for item in (pair[::-1] if swapped else pair))
                for negative in (False, True):
                    want = reference.rope(vector, cos, -sin if negative else sin, interleaved=interleaved)
                    if got.numel() == want.numel() and torch.allclose(got.flatten(), want.flatten(), 1e-10, 1e-10):
                        return interleaved, swapped, negative
    return None


def _row(node: fx.Node, seed: int) -> torch.Tensor:
    tensor = value(node)
    assert tensor is not None
    drawn = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    shape = (1,) * (tensor.dim() - 1) + (tensor.shape[-1],)
    return torch.randn(shape, generator=drawn, dtype=dtype)


def _computed(out: fx.Node, x: fx.Node, inner: list[fx.Node], values: dict[fx.Node, Any]) -> torch.Tensor:
    """The row that comes out. Raises where a node does anything to the dimensions before the last."""
    leading = value(x).shape[:-1]  # type: ignore[union-attr]
    for node in inner:
        args, kwargs = (map_aggregate(part, lambda leaf: _operand(leaf, values)) for part in (node.args, node.kwargs))
        what, tensor = kind(node), value(node)
        if what in _SAME:
            made: Any = args[0]
        elif what in _REGROUP:
            made = args[0].reshape((1,) * len(leading) + tensor.shape[len(leading) :])  # type: ignore[union-attr]
        elif node.op == "call_method":
            made = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            made = node.target(*args, **kwargs)
        if tensor is not None:
            rest = tensor.shape[len(leading) :]
            if tensor.shape[: len(leading)] != leading or made.shape != (1,) * len(leading) + rest:
                raise ValueError("not a row")
        values[node] = made
    found: torch.Tensor = values[out]
    return found


def _operand(leaf: Any, values: dict[fx.Node, Any]) -> Any:
    if not isinstance(leaf, fx.Node):
        return leaf
    return values[leaf] if leaf in values else -values[_unsigned(leaf)]
