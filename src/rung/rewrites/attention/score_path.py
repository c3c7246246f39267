"""The nodes of an attention that hold its scores and probabilities, from its first product to its second."""

from __future__ import annotations

from torch import fx

from rung.rewrites.attention.batch_dims import batch_dims
from rung.rewrites.attention.canonicalize import read_einsum
from rung.rewrites.graph.normalize import CASTS, VIEWS, argument, in_place, kind, names, number, value

_BY_ROWS = names("mul div add sub masked_fill where tanh softmax dropout") | set(CASTS)
_MOST_STEPS = 24  # from the softmax to a product


def path_to_scores(node: fx.Node, steps: int = _MOST_STEPS) -> list[fx.Node] | None:
    """The nodes from this one up to the first product."""
    if operands(node) is not None:
        read = read_einsum(node)
        return [node] if read is None or read.made == read.standard else None
    if not steps:
        return None
    paths = (path_to_scores(item, steps - 1) for item in node.all_input_nodes if _carries_rows(item, node))
    rest = next((path for path in paths if path), None)
    return [node, *rest] if rest else None


def path_to_values(softmax: fx.Node) -> tuple[list[fx.Node], fx.Node | None]:
    """The nodes from the softmax down to the second product, whose rows are those of the probabilities; and that product."""
    path = [softmax]
    while len(path) < _MOST_STEPS:
        last = path[-1]
        product = next((user for user in last.users if _weights_values(last, user)), None)
        step = next((user for user in last.users if _carries_rows(last, user)), None)
        if product is not None or step is None:
            return path, product
        path.append(step)
    return path, None


def _carries_rows(source: fx.Node, node: fx.Node) -> bool:
    """Whether the node holds the rows of the source, each changed by itself."""
    before, after, what = value(source), value(node), kind(node)
    if before is None or after is None or min(before.dim(), after.dim()) < 3 or what not in VIEWS | _BY_ROWS:
        return False
    if (what in VIEWS or what in CASTS or in_place(node)) and node.all_input_nodes[0] is not source:
        return False
    same = before.shape[-2:] == after.shape[-2:] and before.numel() == after.numel()
    return same and (what not in VIEWS or before.dtype == after.dtype)


def _weights_values(probs: fx.Node, node: fx.Node) -> bool:
    """Whether a product has the probabilities, and not an expanded or turned form of them, as its left side."""
    factors, made, read = operands(node, last=True), value(node), read_einsum(node, left=True)
    if factors is None or made is None or factors[0] is not probs or kind(node) == "baddbmm":
        return False
    if read is None:
        return batch_dims(probs) == batch_dims(node)
    sizes = tuple(made.shape[read.made.index(letter)] for letter in read.batch)
    return read.one == read.batch + read.row + read.summed and sizes == batch_dims(probs)


def operands(node: fx.Node, last: bool = False) -> tuple[fx.Node, fx.Node] | None:
    """What is multiplied, where a node is a batched matrix product; the first one, or the last."""
    made, left, right = value(node), None, None
    if made is None or made.dim() < 3:
        return None
    if (read := read_einsum(node, left=last)) is not None:
        lacking = [letter for letter in read.batch if letter not in read.two]
        # Shared by the innermost dimensions of the batch, as by a group: others would have to be written out.
        if read.batch.endswith("".join(lacking)):
            left, right = read.left, read.right
    elif kind(node) == "matmul" and len(node.args) == 2 and not node.kwargs:
        left, right = node.args
    elif kind(node) == "baddbmm" and not in_place(node) and len(node.args) <= 3 and "out" not in node.kwargs:
        beta, added = baddbmm_factor(node, "beta"), value(argument(node, 0, "input"))
        known = baddbmm_factor(node, "alpha") is not None and beta is not None and added is not None
        # What counts for nothing may still be asked for its gradient, of zeros.
        if known and (beta or (added is not None and not added.requires_grad)):
            left, right = argument(node, 1, "batch1"), argument(node, 2, "batch2")
    return (left, right) if isinstance(left, fx.Node) and isinstance(right, fx.Node) else None


def baddbmm_factor(baddbmm: fx.Node, name: str) -> float | None:
    """Its alpha or beta."""
    return number(baddbmm.kwargs.get(name, 1))
