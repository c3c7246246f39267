"""Spellings of the products and masks in attention that stand for plainer ones, and are written as those.

Nothing else is computed, and nothing is computed otherwise: `torch.einsum` of two tensors is such a product inside, and
what a method writes in place is what it returns.
"""

from __future__ import annotations

import torch
from torch import fx

from rung.ladder.surgery.normalize import in_place, kind, value


def respell(graph: fx.Graph) -> None:
    """Write every einsum that is a batched matrix product as one, and read what was written in place from its writer."""
    for node in list(graph.nodes):
        if kind(node) == "einsum":
            _as_product(graph, node)
        elif node.op == "call_method" and in_place(node):
            _read_from_writer(node)


def _read_from_writer(node: fx.Node) -> None:
    """``x.masked_fill_(...); softmax(x)`` as ``softmax(x.masked_fill_(...))``."""
    target = node.args[0] if node.args else None
    if isinstance(target, fx.Node) and value(node) is not None:
        target.replace_all_uses_with(node, lambda user: user > node)


def _as_product(graph: fx.Graph, node: fx.Node) -> None:
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    tensors = [value(item) for item in operands]
    whole = value(node)
    if len(operands) != 2 or node.kwargs or not isinstance(equation, str) or whole is None or whole.dim() < 3:
        return
    read = _letters(equation, [t.dim() for t in tensors if t is not None])
    if read is None or any(t is None for t in tensors):
        return
    (one, two), made = read
    shared, mine, yours, summed = _roles(one, two, made)
    if not len(mine) == len(yours) == len(summed) == 1 or len(made) != len(shared) + 2:
        return
    if len({t.shape[text.index(summed)] for t, text in zip(tensors, (one, two), strict=True) if t is not None}) > 1:
        return  # a size of 1 stands for any in an einsum
    if made.index(mine) > made.index(yours):  # (a b)' = b' a'
        operands, one, two, mine, yours = operands[::-1], two, one, yours, mine
    # Where the result is laid out as a product's is, in its order; else as the left side has it, the probabilities maybe.
    ready = made.endswith(mine + yours)
    batch = "".join(letter for letter in (made if ready else one) if letter in shared)
    plain = batch + mine + yours
    with graph.inserting_before(node):
        left = _ordered(graph, operands[0], one, batch + mine + summed)
        right = _ordered(graph, operands[1], two, batch + summed + yours)
        product = graph.call_function(torch.matmul, (left, right))
        product.meta = dict(node.meta)
        product.meta["example_value"] = whole.permute([made.index(letter) for letter in plain])
        result = _ordered(graph, product, plain, made)
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _letters(equation: str, ranks: list[int]) -> tuple[list[str], str] | None:
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


def _ordered(graph: fx.Graph, node: fx.Node, have: str, want: str) -> fx.Node:
    """The node with its dimensions in another order."""
    if have == want:
        return node
    order = [have.index(letter) for letter in want]
    made = graph.call_method("permute", (node, order))
    tensor = value(node)
    if tensor is not None:
        made.meta["example_value"] = tensor.permute(order)
    if "stack_trace" in node.meta:
        made.meta["stack_trace"] = node.meta["stack_trace"]
    return made
