"""The dimensions in front of a matrix: batch and heads in one, two or three, and tensors brought from one such form to another."""

from __future__ import annotations

import math

from torch import fx

from rung.rewrites.graph.normalize import VIEWS, called, kind, peel_permutations, value
from rung.rewrites.graph.writes import between, may_touch, storage

Dims = tuple[int, ...]


def batch_dims(node: fx.Node) -> Dims:
    """All dimensions of a node's value but the last two."""
    tensor = value(node)
    if tensor is None:
        raise RuntimeError(f"the shape of {node.name} is unknown")
    return tuple(tensor.shape[:-2])


def split_point(dims: Dims, target: Dims) -> int | None:
    """How many of the first dimensions are the first of the target's two; the others are its second."""
    return next((n for n in range(1, len(dims) + 1) if math.prod(dims[:n]) == target[0]), None)


def with_batch_dims(node: fx.Node, dims: Dims, target: Dims, at: fx.Node) -> fx.Node:
    """What broadcasts over [*target, ...] as the node does over [*lead, ...], where both are the same rows; read at a place."""
    tensor = value(node)
    if tensor is None or tensor.dim() < 3 or (dims == target and tensor.dim() == len(target) + 2):
        return node
    source, order = peel_permutations(node)
    inner = [d - tensor.dim() for d in order[-2:]]
    if order[:-2] != list(range(tensor.dim() - 2)) or sorted(inner) != [-2, -1]:
        source, inner = node, [-2, -1]
    made = _regrouped(source, dims, target, at)
    return made if inner == [-2, -1] else called(node.graph, "transpose", made, -1, -2)


def _regrouped(node: fx.Node, dims: Dims, target: Dims, at: fx.Node) -> fx.Node:
    tensor, graph = value(node), node.graph
    assert tensor is not None
    matrix = tuple(tensor.shape[-2:])
    thin = node.args[0] if kind(node) == "expand" else None
    if isinstance(thin, fx.Node) and shape_of(thin) == (*dims[:-1], 1, *matrix):
        return _regrouped(thin, dims, target, at)  # expanded for a group: shared as it was before
    own = (*(1,) * (len(dims) - len(tensor.shape[:-2])), *tensor.shape[:-2])
    if math.prod(own) == 1:
        return called(graph, "reshape", node, *(1,) * len(target), *matrix)
    if own == dims:
        return _viewed_source(node, (*target, *matrix), at) or called(graph, "reshape", node, *target, *matrix)
    edge = split_point(dims, target)
    if edge is None:
        raise RuntimeError(f"{own} does not broadcast over {dims} as it would over {target}")
    wide, sizes = list[int](), list[int]()
    for have, whole in ((own[:edge], dims[:edge]), (own[edge:], dims[edge:])):
        shared = math.prod(have) == 1
        wide += have if shared else whole
        sizes.append(1 if shared else math.prod(whole))
    if tuple(wide) != own:
        if edge == 1 and len(own) == 3 == tensor.dim() - 2 and own[-1] == 1:  # as grouped.py knows the repeat of heads
            node = called(graph, "unsqueeze", called(graph, "squeeze", node, 2), 2)
        node = called(graph, "expand", node, *wide, *matrix)
    return called(graph, "reshape", node, *sizes, *matrix)


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """None where it is not known."""
    tensor = value(node)
    return None if tensor is None else tuple(tensor.shape)


def _viewed_source(node: fx.Node, shape: tuple[int, ...], at: fx.Node) -> fx.Node | None:
    """What a view was taken of, where that has the shape and was not written since."""
    source = node.args[0] if kind(node) in VIEWS and node.args else None
    before, after, memory = value(source), value(node), storage(source)
    if not isinstance(source, fx.Node) or before is None or after is None or memory is None:
        return None
    if tuple(before.shape) != shape or before.dtype != after.dtype:
        return None
    return None if any(may_touch(item, {memory}) for item in between(node, at)) else source
