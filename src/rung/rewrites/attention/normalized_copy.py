"""Attention in unusual dimensions, or with a `baddbmm`, is copied to [B, H, T, S]; the copy is read in its place.

Batch and heads may lie in one dimension, [N, T, S], be split from one another on the way, or be three: [B, Hk, G, T, S],
where keys of [B, Hk, 1, S, D] are shared by the queries of a group. Views that keep the last two dimensions only name the
same rows otherwise, and all between the two products is done row by row: the copy does it to [B, H, T, S]. It stands
beside the original, and takes its place once it is rewritten; else it goes, and nothing is computed otherwise than before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from rung.rewrites.attention.batch_dims import Dims, batch_dims, shape_of, split_point, with_batch_dims
from rung.rewrites.attention.canonicalize import ordered, read_einsum
from rung.rewrites.attention.pattern import Skip, near_matmul, only_user
from rung.rewrites.attention.score_path import baddbmm_factor, operands, path_to_scores, path_to_values
from rung.rewrites.graph.constants import sweep
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import CASTS, VIEWS, argument, called, kind, value
from rung.rewrites.graph.writes import may_touch, storage


@dataclass
class NormalizedCopy:
    """The copy: its softmax, and what stands in the place of the original's result."""

    graph: fx.Graph
    softmax: fx.Node
    made: list[fx.Node]  # in the graph's order
    shaped: fx.Node  # the copy's result with the original's dimensions
    result: fx.Node  # the same in the original's order
    original: list[fx.Node]  # from the first product to the second

    def replace_original(self) -> None:
        """The original goes."""
        old, source = self.original[-1], self.shaped.args[0]
        left = [item for node in self.original for item in node.all_input_nodes]
        if free_readers(old):
            old.replace_all_uses_with(self._in_original_layout(old))
        else:
            old.replace_all_uses_with(self.result)
            for node in (*self.shaped.users, self.shaped):
                if kind(node) in VIEWS and isinstance(source, fx.Node) and shape_of(node) == shape_of(source):
                    node.replace_all_uses_with(source)  # heads that are split off again
                    left.append(node)
        for node in reversed(self.original):
            self.graph.erase_node(node)
        sweep([item for item in left if not item._erased])

    def _in_original_layout(self, old: fx.Node) -> fx.Node:
        """The result as the original lay in memory."""
        tensor, made = value(old), self.result
        strides = () if tensor is None else tensor.stride()
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        with self.graph.inserting_before(old):
            turned = order != sorted(order)
            made = called(self.graph, "permute", made, *order) if turned else made
            made = called(self.graph, "contiguous", made)
            made = called(self.graph, "permute", made, *(order.index(d) for d in sorted(order))) if turned else made
        made.meta = dict(old.meta)
        return made

    def erase(self) -> None:
        """The copy goes."""
        for node in reversed(self.made):
            self.graph.erase_node(node)


def normalized_copy(softmax: fx.Node) -> NormalizedCopy | None:
    """A copy of the attention around a softmax, on [B, H, T, S] or [N, T, S]; None where it is plain already, or none is found."""
    probs = value(softmax)
    if probs is None or argument(softmax, 1, "dim") not in (-1, probs.dim() - 1):
        return None
    above = path_to_scores(softmax)
    if above is None:
        return None
    below, product = path_to_values(softmax)
    rows = [*reversed(above), *below[1:]]
    target = _target_dims(rows)
    if target is None or not _is_nonstandard(rows, product):
        return None
    last = rows[-1]
    if product is None and not near_matmul(last, up=False) and "einsum" not in map(kind, last.users):
        return None
    for item in rows:
        only_user(item, "attention scores" if item in above[1:] else "attention probabilities")
    if product is None:
        user = next(iter(last.users))
        raise Skip(f"`{kind(user) or user.target}` lies between the softmax and the values")
    before = set(softmax.graph.nodes)
    copies: dict[fx.Node, fx.Node] = {}
    for node in rows:
        with softmax.graph.inserting_before(node):
            copies[node] = _copy(node, copies, target)
    with softmax.graph.inserting_before(product):
        shaped, result = _copied_result(product, copies, target)
    made = [node for node in softmax.graph.nodes if node not in before]
    return NormalizedCopy(softmax.graph, copies[softmax], made, shaped, result, [*rows, product])


def _target_dims(rows: list[fx.Node]) -> Dims | None:
    """[B, H] as the scores have it somewhere; [B, Hk * G]; or [N] where they are of three dimensions all the way."""
    dims_seen = {batch_dims(node) for node in rows}
    split = [dims for dims in dims_seen if len(dims) == 2]
    grouped = [dims for dims in dims_seen if len(dims) == 3]
    if any(len(dims) > 3 for dims in dims_seen) or len(split) > 1 or len(grouped) > 1:
        return None
    if not grouped:
        return split[0] if split else next(iter(dims_seen))
    target = split[0] if split else (grouped[0][0], math.prod(grouped[0][1:]))
    return target if split_point(grouped[0], target) is not None else None


def _is_nonstandard(rows: list[fx.Node], product: fx.Node | None) -> bool:
    standard = kind(rows[0]) == "matmul" and (product is None or kind(product) == "matmul")
    viewed = any(kind(node) in VIEWS for node in rows) or len({batch_dims(node) for node in rows}) > 1
    return not standard or viewed or len(batch_dims(rows[0])) > 2


def _copy(node: fx.Node, copies: dict[fx.Node, fx.Node], target: Dims) -> fx.Node:
    """What a node computes of the rows, computed of their copy."""
    if kind(node) in VIEWS:
        return copies[node.all_input_nodes[0]]
    if not copies:
        return _copied_scores(node, target)
    dims = batch_dims(node)

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node) or leaf in copies:
            return copies.get(leaf, leaf)
        return leaf if kind(node) in CASTS else with_batch_dims(leaf, dims, target, node)

    args, kwargs = map_aggregate(node.args, taken), map_aggregate(node.kwargs, taken)
    if kind(node) == "softmax":
        args, kwargs = (args[:1], {**kwargs, "dim": -1}) if "dim" in kwargs else ((args[0], -1, *args[2:]), kwargs)
    return _with_meta_of(node, node.graph.create_node(node.op, node.target, args, kwargs), (*target, *_matrix(node)))


def _with_meta_of(node: fx.Node, made: fx.Node, shape: Dims) -> fx.Node:
    """Known by what the original is known by, but for its shape."""
    made.meta, tensor = dict(node.meta), value(node)
    if tensor is not None:
        made.meta["example_value"] = tensor.detach().new_empty(shape).requires_grad_(tensor.requires_grad)
    return made


def _copied_scores(node: fx.Node, target: Dims) -> fx.Node:
    """The first product, what it is scaled by and what is added to it."""
    graph, dims, read = node.graph, batch_dims(node), read_einsum(node)
    factors = read.operands(graph) if read else operands(node)
    assert factors is not None
    left, right = (with_batch_dims(side, dims, target, node) for side in factors)
    shape = (*target, *_matrix(node))
    made = _with_meta_of(node, graph.call_function(torch.matmul, (left, right)), shape)
    if kind(node) != "baddbmm":
        return made
    alpha, beta, added = baddbmm_factor(node, "alpha"), baddbmm_factor(node, "beta"), argument(node, 0, "input")
    if alpha != 1:
        made = _with_meta_of(node, graph.call_function(torch.mul, (made, alpha)), shape)
    if beta == 0 or _zeros(added):  # where beta is 0, what is there counts for nothing, be it not a number
        return made
    added = with_batch_dims(added, dims, target, node)
    if beta != 1:
        added = called(graph, "mul", added, beta)
    return _with_meta_of(node, graph.call_function(torch.add, (made, added)), shape)


def _zeros(node: fx.Node) -> bool:
    """A tensor of zeros that nothing is written to, however large: larger ones than masks are worked out for."""
    memory = storage(node)
    if kind(node) not in ("zeros", "new_zeros", "zeros_like") or memory is None:
        return False
    return not any(may_touch(other, {memory}) for other in node.graph.nodes)


def _copied_result(product: fx.Node, copies: dict[fx.Node, fx.Node], target: Dims) -> tuple[fx.Node, fx.Node]:
    """The second product of the copy: with the original's dimensions, and in the original's order."""
    graph, read, factors = product.graph, read_einsum(product, left=True), operands(product, last=True)
    assert factors is not None
    probs, values = factors
    dims = batch_dims(probs)
    values = with_batch_dims(read.operands(graph)[1] if read else values, dims, target, product)
    matrix = _matrix(probs)[0], _matrix(values)[1]
    made = _with_meta_of(product, graph.call_function(torch.matmul, (copies[probs], values)), (*target, *matrix))
    shaped = result = called(graph, "reshape", made, *dims, *matrix)
    if read:
        result = ordered(graph, shaped, read.standard, read.made)
    result.meta = dict(product.meta)
    return shaped, result


def _matrix(node: fx.Node) -> Dims:
    tensor = value(node)
    return () if tensor is None else tuple(tensor.shape[-2:])
