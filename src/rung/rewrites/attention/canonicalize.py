"""Spellings of the products, masks and casts in attention that stand for plainer ones, and are written as those.

Nothing else is computed, and nothing is computed otherwise: `torch.einsum` of two tensors is such a product inside, and
what a method writes in place is what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from rung.rewrites.graph.normalize import called, in_place, kind, value


def canonicalize(graph: fx.Graph) -> None:
    """Write every einsum that is a batched matrix product as one and a cast to another tensor's dtype as one to that dtype,
    and read what was written in place from its writer."""
    for node in list(graph.nodes):
        if kind(node) == "einsum":
            _einsum_to_matmul(graph, node)
        elif kind(node) in ("type_as", "to") and len(node.args) == 2 and not node.kwargs:
            _cast_by_dtype(node)
        # No attention adds by index; a loop over experts does, and is known by the one tensor that all its turns add to.
        elif node.op == "call_method" and in_place(node) and kind(node) != "index_add":
            _read_from_writer(node)


def _cast_by_dtype(node: fx.Node) -> None:
    """``x.type_as(y)`` as ``x.to(y.dtype)``: y is read no more, and may be the scores."""
    before, like = value(node.args[0]), value(node.args[1])
    if before is not None and like is not None and before.device == like.device and node.op == "call_method":
        node.target, node.args = "to", (node.args[0], like.dtype)


def _read_from_writer(node: fx.Node) -> None:
    """``x.masked_fill_(...); softmax(x)`` as ``softmax(x.masked_fill_(...))``."""
    target = node.args[0] if node.args else None
    if isinstance(target, fx.Node) and value(node) is not None:
        target.replace_all_uses_with(node, lambda user: user > node)


@dataclass(frozen=True)
class Einsum:
    """An einsum of two tensors that is a batched matrix product, left @ right; its dimensions are named by letters."""

    left: fx.Node
    right: fx.Node
    one: str  # those of left, as they lie
    two: str  # those of right
    made: str  # those of the result
    batch: str  # of the product: [batch, row, summed] @ [batch, summed, column]
    row: str
    summed: str
    column: str

    @property
    def standard(self) -> str:
        """The dimensions of the product."""
        return self.batch + self.row + self.column

    @property
    def grouped(self) -> bool:
        """Whether the right side lacks a dimension of the batch: it is the same for all of that."""
        return any(letter not in self.two for letter in self.batch)

    def operands(self, graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
        """What a matrix product takes, with a dimension of 1 where one is lacking."""
        theirs = "".join(letter for letter in self.batch if letter in self.two)
        right = ordered(graph, self.right, self.two, theirs + self.summed + self.column)
        for place, letter in enumerate(self.batch):
            if letter not in self.two:
                right = called(graph, "unsqueeze", right, place)
        return ordered(graph, self.left, self.one, self.batch + self.row + self.summed), right


def _einsum_to_matmul(graph: fx.Graph, node: fx.Node) -> None:
    read, whole = read_einsum(node), value(node)
    if read is None or whole is None or read.grouped:
        return
    with graph.inserting_before(node):
        product = graph.call_function(torch.matmul, read.operands(graph))
        product.meta = dict(node.meta)
        product.meta["example_value"] = whole.permute([read.made.index(letter) for letter in read.standard])
        result = ordered(graph, product, read.standard, read.made)
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def read_einsum(node: fx.Node, left: bool = False) -> Einsum | None:
    """The matrix product that an einsum of two tensors is, if it is one.

    Of the several dimensions that the left side of a grouped one has for itself, the rows are those that come last in the
    result, or in the left side; the others are the batch's.
    """
    if kind(node) != "einsum":
        return None
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    tensors = [value(item) for item in operands]
    whole = value(node)
    if len(operands) != 2 or node.kwargs or not isinstance(equation, str) or whole is None or whole.dim() < 3:
        return None
    read = _subscripts(equation, [t.dim() for t in tensors if t is not None])
    if read is None or any(t is None for t in tensors):
        return None
    (one, two), made = read
    shared, mine, yours, summed = _roles(one, two, made)
    if len(summed) != 1 or not mine or not yours or min(len(mine), len(yours)) > 1:
        return None
    if len(made) != len(shared + mine + yours):
        return None
    if len({t.shape[text.index(summed)] for t, text in zip(tensors, (one, two), strict=True) if t is not None}) > 1:
        return None  # a size of 1 stands for any in an einsum
    # (a b)' = b' a': the side with groups is the left one; of two without, the one whose rows come first in the result.
    if len(yours) > 1 or (len(mine) == 1 and made.index(mine) > made.index(yours)):
        operands, one, two, mine, yours = operands[::-1], two, one, yours, mine
    row = made[-2] if made[-1] == yours and made[-2] in mine and not left else mine[-1]
    # Where the result is laid out as a product's is, in its order; else as the left side has it, the probabilities maybe.
    ready = made.endswith(row + yours) and not left
    batch = "".join(c for c in (made if ready else one) if c in shared or (c in mine and c != row))
    first, second = operands
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
        return None
    return Einsum(first, second, one, two, made, batch, row, summed, yours)


def _subscripts(equation: str, ranks: list[int]) -> tuple[list[str], str] | None:
    """One letter a dimension, of both operands and of the result; None where the result is left to be inferred, or a
    letter stands for two dimensions of one tensor. Dimensions under an ellipsis are named by capitals."""
    inputs, arrow, made = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if not arrow or len(parts) != 2 or len(ranks) != 2:
        return None
    hidden = {rank - len(p.replace("...", "")) for p, rank in zip(parts, ranks, strict=True) if "..." in p}
    if len(hidden) > 1 or ("..." in made and not hidden) or any(c.isupper() for c in equation):
        return None
    names = "ABCDEFGH"[: hidden.pop()] if hidden else ""
    parts, made = [p.replace("...", names) for p in parts], made.replace("...", names)
    if any(len(set(text)) != len(text) for text in (*parts, made)):
        return None
    return (parts, made) if [len(p) for p in parts] == ranks else None


def _roles(one: str, two: str, made: str) -> tuple[str, str, str, str]:
    """Letters of both and of the result; of the first alone; of the second alone; and those that are summed over."""
    return (
        "".join(c for c in one if c in two and c in made),
        "".join(c for c in one if c not in two),
        "".join(c for c in two if c not in one),
        "".join(c for c in one if c in two and c not in made),
    )


def ordered(graph: fx.Graph, node: fx.Node, have: str, want: str) -> fx.Node:
    """The node with its dimensions in another order."""
    if have == want:
        return node
    made = called(graph, "permute", node, *(have.index(letter) for letter in want))
    if "stack_trace" in node.meta:
        made.meta["stack_trace"] = node.meta["stack_trace"]
    return made
