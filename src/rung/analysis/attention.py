"""Which operators are the parts of hand-written attention, told by the shapes that they were given.

Unfused attention is a batched matrix product, a few pointwise kernels, a softmax and a second product; by
name they are a GEMM, elementwise work and a softmax. What marks them is the score matrix: the 4-D input
[batch, heads, queries, keys] of a softmax, also met as [batch * heads, queries, keys].
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

Dims = tuple[int, ...]

_SOFTMAX = (
    "aten::_softmax",
    "aten::softmax",
    "aten::_safe_softmax",
    "aten::_softmax_backward_data",
    "aten::_masked_softmax",
)
_PRODUCTS = ("aten::bmm", "aten::matmul", "aten::baddbmm", "aten::einsum")


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


def softmax_shapes(ops: Iterable[tuple[str, str | None]]) -> list[Dims]:
    """The distinct shapes of softmax inputs among (name, dims) of operators, in order of appearance."""
    seen: dict[Dims, None] = {}
    for name, dims in ops:
        if name in _SOFTMAX:
            for shape in shapes(dims)[:1]:
                seen.setdefault(shape)
    return list(seen)


def score_shapes(softmax: Iterable[Dims]) -> set[Dims]:
    """The shapes of attention scores: 4-D softmax inputs, and the same with batch and heads joined."""
    scores: set[Dims] = set()
    for shape in softmax:
        if len(shape) == 4:
            batch, heads, queries, keys = shape
            scores |= {shape, (batch * heads, queries, keys)}
    return scores


def touches_scores(name: str, dims: str | None, scores: set[Dims]) -> bool:
    """Whether an operator reads scores (or, in a matrix product, writes them or reads their transpose)."""
    if not scores or not name.startswith("aten::"):
        return False
    inputs = shapes(dims)
    if any(shape in scores for shape in inputs):
        return True
    if name not in _PRODUCTS or len(inputs) < 2:
        return False
    left, right = inputs[-2:]
    if len(left) != len(right) or len(left) < 3:
        return False
    return (*left[:-1], right[-1]) in scores or (*left[:-2], left[-1], left[-2]) in scores
