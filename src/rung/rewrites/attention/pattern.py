"""Reads the nodes of one hand-written attention, starting from its softmax.

Around the softmax it may do two things to whole rows: take their largest score off, and give each a score more. That is an attention sink,
which belongs to no key (gpt-oss): it takes its share of a row's softmax, and is dropped before the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rung.rewrites.attention.masks import Mask, read_mask
from rung.rewrites.graph.constants import COMPUTED, evaluate
from rung.rewrites.graph.normalize import (
    CASTS,
    argument,
    cast_source,
    in_place,
    kind,
    number,
    peel_permutations,
    scaled,
    value,
)


class Skip(Exception):
    """This softmax is not rewritten; the message is the reason in words."""


@dataclass
class AttentionPattern:
    scores: fx.Node  # the first matmul
    query: fx.Node
    key: fx.Node  # as the matmul takes it: [B, H, D, T]
    value: fx.Node
    output: fx.Node  # the second matmul
    scale: float = 1.0
    cap: float | None = None  # the scores are cap * tanh(scale * q k)
    dropout: float = 0.0
    masks: list[Mask] = field(default_factory=list)
    sink: fx.Node | None = None  # a score more for each row, of no key: [B, H, T or 1, 1]
    inner: list[fx.Node] = field(default_factory=list)  # between the two matmuls, last first

    @property
    def beyond_sdpa(self) -> bool:
        """Whether scaled_dot_product_attention cannot do it, whatever its mask."""
        return self.cap is not None or self.sink is not None


def match_attention(softmax: fx.Node) -> AttentionPattern | None:
    """The attention around a softmax; None where there is none, Skip where it is close to one."""
    probs = value(softmax)
    if probs is None or probs.dim() < 3 or kind(softmax) != "softmax":
        return None
    carried = not softmax.users or any(
        kind(user) in ("matmul", *_CARRIERS) or without_the_last(user, softmax) for user in softmax.users
    )
    if not carried and not near_matmul(softmax, up=False):
        return None
    if argument(softmax, 1, "dim") not in (-1, probs.dim() - 1):
        raise Skip("the softmax is not over the last dimension")
    above = _upward(softmax)
    scores = above.scores
    if scores is None:
        return None
    if probs.dim() > 4:
        raise Skip(f"its scores have {probs.dim()} dimensions, and not [batch, heads, queries, keys]")
    below, output, dropout = _downward(softmax, above.sink is not None)
    query, key = scores.args[:2]
    if not isinstance(query, fx.Node) or not isinstance(key, fx.Node):
        raise Skip("the scores are not a product of two tensors of this graph")
    values = output.args[1]
    if not isinstance(values, fx.Node):
        raise Skip("the values are not a tensor of this graph")
    inner = [*below, softmax, *above.seen]
    return AttentionPattern(
        scores, query, key, values, output, above.scale, above.cap, dropout, above.masks, above.sink, inner
    )


_CARRIERS = (*CASTS, "dropout")


def only_user(node: fx.Node, what: str) -> None:
    if len(node.users) != 1:
        returned = any(user.op == "output" for user in node.users)
        raise Skip(f"{what} are {'returned' if returned else 'used elsewhere'}")


@dataclass
class _Above:
    """What stands between a softmax and its scores, last first; no scores where it is no attention."""

    scores: fx.Node | None = None
    scale: float = 1.0
    cap: float | None = None
    masks: list[Mask] = field(default_factory=list)
    sink: fx.Node | None = None
    seen: list[fx.Node] = field(default_factory=list)


def _upward(softmax: fx.Node) -> _Above:
    above = _Above()
    twice: list[fx.Node] = []  # read by their own largest, too
    node: Any = softmax.args[0] if softmax.args else softmax.kwargs.get("input")
    while isinstance(node, fx.Node) and kind(node) != "matmul":
        step = scaling(node)
        between: list[fx.Node] = []
        of_rows = not above.masks and above.cap is None and above.sink is None
        if step is not None:
            upper, factor = step
            above.scale *= factor
        elif (source := cast_source(node)) is not None:
            upper = source
        elif of_rows and (less := less_its_largest(node)) is not None:
            upper, between = less
            twice.append(upper)
        elif of_rows and above.scale == 1.0 and (more := with_a_sink(node)) is not None:
            upper, above.sink = more
        elif (masked := read_mask(node)) is not None:
            upper, mask = masked
            if above.cap is not None:
                raise Skip("the mask is applied before the cap")
            if above.scale != 1.0:
                raise Skip("the scores are scaled after the mask")
            above.masks.append(mask)
        elif above.cap is None and kind(node) == "tanh" and near_matmul(node):
            upper, above.cap, above.scale = node.all_input_nodes[0], above.scale, 1.0
        elif near_matmul(node):
            raise Skip(f"`{kind(node) or node.target}` lies between the scores and the softmax")
        else:
            return above
        if in_place(node) and node.args[:1] != (upper,):
            raise Skip("the mask is written in place")
        above.seen += [node, *between]
        node = upper
    if isinstance(node, fx.Node):
        for item in (*above.seen, node):
            if item not in twice:
                only_user(item, "attention scores")
        above.scores = node
    return above


def scaling(node: fx.Node) -> tuple[fx.Node, float] | None:
    """(x, factor) where the node is x times or over a number, or over a constant tensor that holds one, as sqrt(d) often does."""
    if (step := scaled(node)) is not None:
        return step
    made, what = value(node), kind(node)
    if made is None or what not in ("mul", "div") or set(node.kwargs) - {"input", "other"}:
        return None
    left, right = argument(node, 0, "input"), argument(node, 1, "other")
    for source, by in ((left, right), (right, left))[: 2 if what == "mul" else 1]:
        before, one = value(source), value(by)
        if (
            before is None
            or one is None
            or one.numel() != 1
            or (before.shape, before.dtype) != (made.shape, made.dtype)
        ):
            continue
        constant = evaluate(by, COMPUTED)
        factor = float(constant) if constant is not None else 0.0
        if factor and math.isfinite(factor):
            return source, factor if what == "mul" else 1.0 / factor
    return None


def near_matmul(node: fx.Node, up: bool = True) -> bool:
    """A matmul a few steps up, or down: close enough to attention to be worth a word."""
    level = {node}
    for _ in range(4):
        if any(kind(item) in ("matmul", "baddbmm") for item in level):
            return True
        level = {other for item in level for other in (item.all_input_nodes if up else item.users)}
    return False


def _downward(softmax: fx.Node, sink: bool) -> tuple[list[fx.Node], fx.Node, float]:
    node, dropout = softmax, 0.0
    seen: list[fx.Node] = []
    while True:
        only_user(node, "attention probabilities")
        user = next(iter(node.users))
        if kind(user) == "matmul":
            if user.args[:1] != (node,) or len(user.args) < 2:
                raise Skip("the probabilities are not the left side of the second matmul")
            if sink:
                raise Skip("each row has an extra score (a sink) whose probability is not dropped before the values")
            return list(reversed(seen)), user, dropout
        if kind(user) == "dropout" and user.args[:1] == (node,):
            rate = _dropout_rate(user)
            if rate and dropout:
                raise Skip("two dropouts on the attention probabilities")
            dropout = dropout or rate
        elif sink and without_the_last(user, node):
            sink = False
        elif cast_source(user) is not node:
            raise Skip(f"`{kind(user) or user.target}` lies between the softmax and the values")
        seen.append(user)
        node = user


def _dropout_rate(node: fx.Node) -> float:
    # F.dropout(x, p=0.5, training=True); torch.dropout(x, p, train)
    rate = number(argument(node, 1, "p", default=0.5))
    training = argument(node, 2, "training", "train", default=True)
    if rate is None or not isinstance(training, bool):
        raise Skip("the dropout rate is not a plain number")
    return rate if training else 0.0


def compute_dtype(pattern: AttentionPattern) -> torch.dtype:
    """The dtype in which the hand-written form multiplied q and k, autocast included; the values are multiplied in it, too."""
    scores, output = value(pattern.scores), value(pattern.output)
    if scores is None or output is None or not scores.dtype.is_floating_point:
        raise Skip("the dtype of the scores is unknown")
    if not _holds(scores.dtype, output.dtype) and not _rounded(pattern.value, scores.dtype):
        raise Skip(f"the values are {value(pattern.value).dtype} and the scores {scores.dtype}")  # type: ignore[union-attr]
    return scores.dtype


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    return bool(torch.promote_types(wide, narrow) == wide)


def _rounded(node: fx.Node | None, dtype: torch.dtype) -> bool:
    """Whether a tensor holds nothing that is not in dtype: it, or what it was widened from."""
    while node is not None:
        node, _ = peel_permutations(node)
        if (tensor := value(node)) is not None and _holds(dtype, tensor.dtype):
            return True
        node = cast_source(node)
    return False


def less_its_largest(node: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """(x, nodes), where the node is x less the largest of each of its rows, which leaves a softmax as it is: what stands between
    the two, last first. None where it is anything else, or others read x, too."""
    source, largest = argument(node, 0, "input"), argument(node, 1, "other")
    if kind(node) != "sub" or len(node.args) != 2 or node.kwargs or not isinstance(source, fx.Node):
        return None
    between: list[fx.Node] = []
    while isinstance(largest, fx.Node) and largest is not source and len(largest.users) == 1:
        between.append(largest)
        what, inner = kind(largest), largest.args[0] if largest.args else None
        if what in ("max", "amax"):
            last = argument(largest, 1, "dim") in (-1, [-1], (-1,), *_last(source))
            same = inner is source and last and argument(largest, 2, "keepdim", default=False) is True
            return (source, between) if same and {*source.users} == {node, largest} else None
        if what != "detach" and not (what == "getitem" and largest.args[1:] == (0,)):
            return None
        largest = inner
    return None


def with_a_sink(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(scores, sink), where the node is the scores with one more at the end of each row."""
    parts = argument(node, 0, "tensors")
    if kind(node) not in ("cat", "concat") or not isinstance(parts, (list, tuple)) or len(parts) != 2:
        return None
    scores, sink = parts
    made, one = value(scores), value(sink)
    if made is None or one is None or argument(node, 1, "dim", default=0) not in (-1, made.dim() - 1):
        return None
    return (scores, sink) if one.shape[-1] == 1 < made.shape[-1] else None


def without_the_last(node: fx.Node, source: fx.Node) -> bool:
    """Whether the node is the source without the last of each of its rows."""
    made, whole = value(node), value(source)
    if kind(node) != "getitem" or node.args[0] is not source or made is None or whole is None:
        return False
    *others, last = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    full = all(item is Ellipsis or item == slice(None) for item in others)
    start = isinstance(last, slice) and last.start in (None, 0) and last.step in (None, 1)
    return full and start and made.shape == (*whole.shape[:-1], whole.shape[-1] - 1)


def _last(node: fx.Node) -> tuple[int, ...]:
    made = value(node)
    return () if made is None else (made.dim() - 1,)
