"""Grouped-query attention: the repeat that gives every query head its own copy of a key head."""

from __future__ import annotations

import torch
from torch import fx

from rung.rewrites.graph.normalize import argument, in_place, kind, value

_FUSED_DTYPES = (torch.float16, torch.bfloat16)


def repeated_from(node: fx.Node, axis: int) -> tuple[fx.Node, int] | None:
    """(x, n) where the node is ``x.repeat_interleave(n, dim=axis)`` or the expand-and-reshape form of it."""
    result = value(node)
    if result is None or result.dim() != 4 or in_place(node):
        return None
    if kind(node) == "repeat_interleave":
        source, times = argument(node, 0, "input", "self"), argument(node, 1, "repeats")
        dim = argument(node, 2, "dim")
        whole = isinstance(times, int) and isinstance(dim, int) and set(node.kwargs) <= {"input", "repeats", "dim"}
        return (source, times) if whole and dim % 4 == axis and isinstance(source, fx.Node) else None
    if kind(node) not in ("reshape", "view", "flatten"):
        return None
    expand = node.args[0]
    if kind(expand) not in ("expand", "expand_as") or not isinstance(expand, fx.Node):
        return None
    wide, lifted = value(expand), expand.args[0]
    thin = value(lifted)
    if wide is None or thin is None or not isinstance(lifted, fx.Node) or wide.dim() != 5 or thin.dim() != 5:
        return None
    source = _lifted_from(lifted, axis + 1)
    base = value(source) if source is not None else None
    if source is None or base is None or base.dim() != 4:
        return None
    times = wide.shape[axis + 1]
    shape = list(base.shape)
    lifted_shape = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    wide_shape = [*shape[: axis + 1], times, *shape[axis + 1 :]]
    shape[axis] *= times
    if [list(thin.shape), list(wide.shape), list(result.shape)] != [lifted_shape, wide_shape, shape]:
        return None
    return source, int(times)


def _lifted_from(node: fx.Node, at: int) -> fx.Node | None:
    """x where the node is x with one new dimension at this place."""
    source = argument(node, 0, "input", "self")
    if not isinstance(source, fx.Node) or in_place(node):
        return None
    if kind(node) == "unsqueeze":
        dim = argument(node, 1, "dim")
        return source if isinstance(dim, int) and dim % 5 == at else None
    if kind(node) != "getitem":
        return None
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if Ellipsis in [item for item in index if not isinstance(item, fx.Node)]:
        spot = next(i for i, item in enumerate(index) if item is Ellipsis)
        filler = (slice(None),) * (5 - (len(index) - 1))
        index = (*index[:spot], *filler, *index[spot + 1 :])
    plain = all(item is None or item == slice(None) for item in index)
    return source if plain and [i for i, item in enumerate(index) if item is None] == [at] else None


def takes_groups(query: torch.Tensor, dtype: torch.dtype, value_width: int, masked: bool) -> bool:
    """Whether SDPA has a fast path for ``enable_gqa`` here; elsewhere the repeat stays.

    On a GPU only the flash kernel (and cuDNN) takes it: half precision, no mask tensor, equal head sizes up
    to 256. Anything else falls to the math path, slower than the repeat together with a fused kernel.
    """
    if query.device.type == "cpu":
        return True
    return dtype in _FUSED_DTYPES and not masked and query.shape[-1] == value_width <= 256
