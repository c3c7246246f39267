"""Which operators are the parts of hand-written attention, told by the shapes that they were given.

Unfused attention is a batched matrix product, a few pointwise kernels, a softmax and a second product; by
name they are a GEMM, elementwise work and a softmax. What marks them is the score matrix [batch, heads, queries, keys],
also met as [batch * heads, queries, keys], and what becomes of it: a product writes it, a softmax reads it, a product
reads what that wrote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import NamedTuple

import msgspec

Dims = tuple[int, ...]

_SOFTMAX = (
    "aten::_softmax",
    "aten::softmax",
    "aten::_safe_softmax",
    "aten::_softmax_backward_data",
    "aten::_masked_softmax",
)
PRODUCTS = ("aten::bmm", "aten::matmul", "aten::baddbmm", "aten::einsum")


@lru_cache(maxsize=65536)
def shapes(dims: str | None) -> tuple[Dims, ...]:
    """The shapes in the JSON of an event's "Input Dims", those inside tensor lists too; scalars left out."""
    if not dims:
        return ()
    try:
        values = msgspec.json.decode(dims)
    except (msgspec.DecodeError, RecursionError):
        return ()
    found: list[Dims] = []
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, list) and value:
            if all(isinstance(size, int) for size in value):
                found.append(tuple(value))
            else:
                pending.extend(reversed(value))
    return tuple(found)


class Called(NamedTuple):
    """A call of a product or a softmax, in the order of its thread. dims, concrete: as recorded."""

    thread: int
    name: str
    dims: str | None
    concrete: str | None


def is_softmax(name: str) -> bool:
    """Also a kernel of Inductor's into which one is fused."""
    return name in _SOFTMAX or (name.startswith("triton_") and "softmax" in name)


def softmax_shapes(calls: Iterable[Called]) -> list[Dims]:
    """The distinct shapes of the inputs of ATen's softmax, in order of appearance."""
    seen: dict[Dims, None] = {}
    for call in calls:
        if call.name in _SOFTMAX:
            for shape in shapes(call.dims)[:1]:
                seen.setdefault(shape)
    return list(seen)


def score_shapes(calls: Iterable[Called]) -> set[Dims]:
    """The shapes of attention scores, with all but the last two dimensions joined.

    Scores are the four-dimensional input of a softmax over its last dimension; and, of any number of dimensions, what a
    batched product has made, a softmax has taken, and another batched product takes as a factor, in this order.
    """
    scores: set[Dims] = set()
    # By thread: results of products; and those that a softmax has read since, with the shapes in which it read them.
    made: dict[int, dict[Dims, None]] = defaultdict(dict)
    taken: dict[int, dict[Dims, set[Dims]]] = defaultdict(dict)
    for call in calls:
        inputs = shapes(call.dims)
        if is_softmax(call.name):
            if call.name in _SOFTMAX:
                inputs = inputs[:1]
                if inputs and len(inputs[0]) == 4 and _over_the_last(call.concrete, 4):
                    scores.add(joined(inputs[0]))
            for product in made[call.thread]:
                if same := {joined(shape) for shape in inputs if _same(product, shape)}:
                    taken[call.thread].setdefault(product, set()).update(same)
        elif len(inputs) >= 2 and (result := _product(*inputs[-2:])):
            for factor in inputs[-2:]:
                for score, alike in taken[call.thread].items():
                    if _same(score, factor):
                        scores |= {score, *alike}
            _remember(made[call.thread], result)
    return scores


def _remember(results: dict[Dims, None], result: Dims) -> None:
    """The latest results; what lies further back than a few layers' is another's."""
    results.pop(result, None)
    results[result] = None
    if len(results) > 64:
        del results[next(iter(results))]


def _product(left: Dims, right: Dims) -> Dims | None:
    """The result of a batched product, joined; None for one with a plain matrix."""
    if len(left) != len(right) or len(left) < 3 or left[-1] != right[-2]:
        return None
    return joined((*left[:-1], right[-1]))


def joined(shape: Dims) -> Dims:
    """Three dimensions, as a batched product sees them: [batch, heads, queries, keys] as [batch * heads, queries, keys]."""
    return (prod(shape[:-2]), *shape[-2:])


def _same(product: Dims, shape: Dims) -> bool:
    """Whether these are the same scores: heads that share keys are queries to a product."""
    return len(shape) >= 3 and shape[-1] == product[-1] and prod(shape) == prod(product)


def _over_the_last(concrete: str | None, dimensions: int) -> bool:
    """Whether a softmax goes over the last dimension, or nothing says over which."""
    try:
        dim = int(msgspec.json.decode(concrete or "[]")[1])
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError):
        return True
    return dim in (-1, dimensions - 1)


def touches_scores(name: str, dims: str | None, scores: set[Dims]) -> bool:
    """Whether an operator reads scores (or, in a matrix product, writes them or reads their transpose)."""
    if not scores or not name.startswith(("aten::", "triton_")):
        return False
    inputs = [shape for shape in shapes(dims) if len(shape) >= 3]
    if any(joined(shape) in scores for shape in inputs):
        return True
    if name not in PRODUCTS or len(inputs) < 2:
        return False
    left, right = inputs[-2:]
    if len(left) != len(right):
        return False
    return joined((*left[:-1], right[-1])) in scores or joined((*left[:-2], left[-1], left[-2])) in scores
