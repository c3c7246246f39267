"""The masks that hand-written attention lays over its scores, and what SDPA takes in their place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial, reduce
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import fx

from rung.rewrites.graph.constants import evaluate
from rung.rewrites.graph.normalize import argument, called, computed, kind, number, value

# exp() of this is 0 beside any sane score, in every dtype.
VERY_NEGATIVE = -1e4


@dataclass(frozen=True)
class Mask:
    """``add``, ``sub``: a float mask to add, to take away; ``drop``: True is filled; ``keep``: False is filled."""

    node: fx.Node
    form: Literal["add", "sub", "drop", "keep"]
    fill: float = -math.inf


def read_mask(node: fx.Node) -> tuple[fx.Node, Mask] | None:
    """(scores, mask) where the node lays a mask over scores."""
    what = kind(node)
    if what == "add" and not set(node.kwargs) - {"input", "other"}:
        left, right = argument(node, 0, "input"), argument(node, 1, "other")
        return _added(node, left, right)
    if what == "sub" and not set(node.kwargs) - {"input", "other"}:
        left, right = argument(node, 0, "input"), argument(node, 1, "other")
        mask = value(right)
        fits = mask is not None and mask.dtype.is_floating_point and _same_shape(left, node)
        return (left, Mask(right, "sub")) if fits and _leads_to_matmul(left) else None
    if what == "masked_fill":
        scores, mask = argument(node, 0, "input"), argument(node, 1, "mask")
        return _filled(scores, mask, "drop", argument(node, 2, "value"), node)
    if what == "where":
        parts = [argument(node, 0, "condition"), argument(node, 1, "input"), argument(node, 2, "other")]
        if node.op == "call_method":  # x.where(condition, other)
            parts = [argument(node, 1, "condition"), argument(node, 0, "self"), argument(node, 2, "other")]
        condition, yes, no = parts
        return _filled(yes, condition, "keep", no, node) or _filled(no, condition, "drop", yes, node)
    return None


def _added(node: fx.Node, left: Any, right: Any) -> tuple[fx.Node, Mask] | None:
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    # The scores are the side that goes back to a product of tensors; a mask does not.
    if not _leads_to_matmul(left) and _leads_to_matmul(right):
        left, right = right, left
    mask = value(right)
    if mask is None or not mask.dtype.is_floating_point or not _same_shape(left, node):
        return None
    return left, Mask(right, "add")


def _leads_to_matmul(node: Any) -> bool:
    for _ in range(12):
        if kind(node) == "matmul":
            return True
        if kind(node) not in ("mul", "div", "add", "sub", "masked_fill", "where", "to", "float", "type", "type_as"):
            return False
        inputs = [item for item in node.all_input_nodes if (value(item) is not None and _same_shape(item, node))]
        if not inputs:
            return False
        node = next((item for item in inputs if kind(item) == "matmul"), inputs[0])
    return False


def _filled(scores: Any, mask: Any, form: Literal["drop", "keep"], fill: Any, node: fx.Node) -> tuple[Any, Mask] | None:
    flags = value(mask)
    if not isinstance(scores, fx.Node) or flags is None or flags.dtype != torch.bool:
        return None
    level = number(fill)
    if level is None and isinstance(fill, fx.Node) and (shape := value(fill)) is not None and shape.numel() == 1:
        constant = evaluate(fill)
        level = None if constant is None else float(constant.item())
    if level is None or not level <= VERY_NEGATIVE or not _same_shape(scores, node):
        return None
    return scores, Mask(mask, form, level)


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    first, second = value(one), value(other)
    return first is not None and second is not None and first.shape == second.shape


def is_causal(mask: Mask, length: int) -> bool:
    """Whether a mask is the plain causal one: proved by evaluating it, never guessed from its spelling."""
    shape = value(mask.node)
    return shape is not None and tuple(shape.shape[-2:]) == (length, length) and _proved(mask) == "causal"


def is_open(mask: Mask) -> bool:
    """Whether a mask provably hides nothing and adds nothing."""
    return _proved(mask) == "open"


def window_of(mask: Mask, length: int) -> int | None:
    """How many keys a query sees, its own the last, where a mask provably is such a sliding window."""
    shape = value(mask.node)
    found = _proved(mask) if shape is not None and tuple(shape.shape[-2:]) == (length, length) else ""
    return found if isinstance(found, int) else None


def _proved(mask: Mask) -> Literal["causal", "open", ""] | int:
    # All layers share a mask: it is worked out once, and remembered on its node.
    known = mask.node.meta.setdefault("rung_mask", {})
    if mask.form not in known:
        tensor = evaluate(mask.node)
        with torch.no_grad():
            known[mask.form] = "" if tensor is None else _shape_of(tensor, mask.form)
    found: Literal["causal", "open", ""] | int = known[mask.form]
    return found


def _shape_of(tensor: torch.Tensor, form: str) -> Literal["causal", "open", ""] | int:
    if form in ("add", "sub"):
        tensor = tensor if form == "add" else -tensor
        closed = tensor <= max(-1e9, torch.finfo(tensor.dtype).min / 2)
        if not bool((tensor.masked_fill(closed, 0) == 0).all()):
            return ""  # it adds something where it hides nothing
    else:
        closed = tensor if form == "drop" else ~tensor
    if not bool(closed.any()):
        return "open"
    if closed.dim() < 2 or closed.shape[-1] != closed.shape[-2]:
        return ""
    length = closed.shape[-1]
    everything = torch.ones(length, length, dtype=torch.bool, device="cpu")
    rows = closed.reshape(-1, length, length)
    width = int((~rows[0, -1]).sum())
    if not width or not bool((rows == everything.triu(1) | everything.tril(-width)).all()):
        return ""
    return "causal" if width == length else width


def as_argument(graph: fx.Graph, masks: list[Mask], dtype: torch.dtype, scores: torch.Size) -> fx.Node:
    """The nodes for ``attn_mask``: a bool mask where that says the same, otherwise one float mask.

    What differs: a row with every key closed by -inf is NaN in the hand-written form and 0 (or NaN, by kernel
    and version) in SDPA. Rows closed by a finite number of one mask, or of several that fill alike, stay a mean of the values, as by hand, hence the
    float mask there, of a number in which scores drown (`_closed`; float16 has none); of fills that differ they are a mean of other keys. Gradients
    of such rows need `closed_rows`. A float mask wider than the scores is rounded to their dtype.
    """
    parts, all_flags = [], all(mask.form in ("drop", "keep") for mask in masks)
    for mask in masks:
        if mask.form in ("add", "sub"):
            node = mask.node
            if mask.form == "sub":
                node = computed(graph, torch.neg, node)
            parts.append(_narrowed(graph, node, dtype))
        elif len(masks) == 1 and math.isinf(mask.fill):
            keep = mask.form == "keep"
            parts.append(mask.node if keep else computed(graph, torch.logical_not, mask.node))
        else:
            # Beside what is added, the fill itself: how far below it what is added lies decides which keys are left.
            closed = _closed(dtype) if all_flags else max(mask.fill, torch.finfo(dtype).min)
            parts.append(_as_float(graph, mask, closed, dtype))
    total = parts[0]
    for part in parts[1:]:
        total = computed(graph, torch.add, total, part)
    if len(parts) > 1 and all_flags:
        # What is closed twice is no further away than what is closed once.
        total = computed(graph, torch.clamp, total, _closed(dtype))
    shape = torch.broadcast_shapes(*(tuple(v.shape) for m in masks if (v := value(m.node)) is not None))
    if len(shape) < 4:
        total = called(graph, "reshape", total, *(1,) * (4 - len(shape)), *shape)
    if shape[-1:] != scores[-1:]:  # one value for all keys: the kernels want a dense last dimension
        total = called(graph, "contiguous", called(graph, "expand", total, -1, -1, scores[-2], scores[-1]))
    return total


def closed_rows(graph: fx.Graph, masks: list[Mask]) -> fx.Node | None:
    """Which rows are filled as a whole, bool [..., T or 1, 1]; None where provably none is. masks: the last one that is laid over the scores
    first.

    What a fill replaces gets no gradient, where a sum hands it on: in such a row it would reach query and key. And of the row's probabilities
    the flash kernels know nothing in the backward pass, for they rebuild them from a log-sum in which the fill drowns the rest. With 0 in the
    place of its query and its mask, the row is the same mean of the values, and does neither.
    """
    fills = list(takewhile(lambda mask: mask.form in ("drop", "keep") and mask.fill == masks[0].fill, masks))
    if not fills or math.isinf(fills[0].fill):
        return None
    known = [(evaluate(mask.node), mask.form) for mask in fills]
    hidden = [flags if form == "drop" else ~flags for flags, form in known if flags is not None]
    if len(hidden) == len(fills) and not bool(reduce(torch.logical_or, hidden).all(-1).any()):
        return None
    drops = [m.node if m.form == "drop" else computed(graph, torch.logical_not, m.node) for m in fills]
    return computed(graph, torch.all, reduce(partial(computed, graph, torch.logical_or), drops), -1, True)


def _as_float(graph: fx.Graph, mask: Mask, fill: float, dtype: torch.dtype) -> fx.Node:
    device = {"dtype": dtype, "device": value(mask.node).device}  # type: ignore[union-attr]
    closed = graph.call_function(torch.full, ((), fill), device)
    opened = graph.call_function(torch.zeros, ((),), device)
    pair = (closed, opened) if mask.form == "drop" else (opened, closed)
    made, flags = graph.call_function(torch.where, (mask.node, *pair)), value(mask.node)
    made.meta["example_value"] = flags.new_empty(flags.shape, dtype=dtype)  # type: ignore[union-attr]
    return made


def _closed(dtype: torch.dtype) -> float:
    """What is added to scores that were filled: by hand all are one number then, so a row of such has equal weights. Beside a small fill
    (-1e4) they would tell apart what is hidden. Half the lowest: kernels multiply it by log2(e)."""
    lowest = torch.finfo(dtype).min
    return float(lowest if dtype == torch.float16 else lowest / 2)


def _narrowed(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    tensor = value(node)
    if tensor is not None and tensor.dtype == dtype:
        return node
    if tensor is not None and torch.finfo(tensor.dtype).max > torch.finfo(dtype).max:
        # The lowest fp32 number would become -inf, and a fully closed row NaN.
        node = computed(graph, torch.clamp, node, torch.finfo(dtype).min)
    return called(graph, "to", node, dtype)
