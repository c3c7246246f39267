"""What a loop over experts is in the captured graph.

for number, expert in enumerate(experts):
    token, rank = torch.where(chosen == number)
    out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])

Who chose an expert is also read off a mask, `F.one_hot(chosen, len(experts)).permute(2, 1, 0)[number]`, and rows and weights are also
taken as `x[None, token].reshape(-1, width)` and `weights[token, rank].unsqueeze(-1)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.node import map_aggregate

from rung.rewrites.graph.normalize import ELEMENTWISE, argument, in_place, kind, names, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode, written
from rung.rewrites.horizontal_fusion import is_dense_input, projection

# What computes every row by itself: the rows of all experts may then go through it together.
_BY_ROW = ELEMENTWISE - names("dropout type_as")
# What Dynamo notes of a size that it does not know; that of torch 2.10 calls `torch._check_is_size`, too.
_OF_SIZES = names("sym_size ge le gt lt eq _assert_scalar _check_is_size")


@dataclass(frozen=True)
class Choice:
    """Who chose one expert. where: ``torch.where`` of it, whose result holds the tokens at `token` and their ranks at the other place;
    chosen: the numbers of the experts, [tokens, k]; mask: what says of each of them whether it is this expert."""

    where: fx.Node
    chosen: fx.Node
    number: int
    token: int
    mask: fx.Node

    def tokens(self, node: Any) -> bool:
        return self._is(node, self.token)

    def ranks(self, node: Any) -> bool:
        return self._is(node, 1 - self.token)

    def _is(self, node: Any, place: int) -> bool:
        return kind(node) == "getitem" and node.args == (self.where, place)


@dataclass(frozen=True)
class Turn:
    """One expert: who chose it, what it makes of their rows, and where that is added; rows: of `source`, those of the
    tokens; around: what stands between these, and between what it makes and where that is added."""

    choice: Choice
    source: fx.Node
    weights: fx.Node
    rows: fx.Node
    made: fx.Node
    added: fx.Node
    around: frozenset[fx.Node]


class Left(Exception):
    """Why a loop is left as it is."""


def turn_of(node: fx.Node) -> Turn | None:
    """The turn that ends in this node."""
    if kind(node) != "index_add" or not in_place(node) or node.args[1] != 0 or len(node.args) != 4 or node.kwargs:
        return None
    token, product = node.args[2], node.args[3]
    around = {node}
    while kind(product) in ("to", "type", "float", "half", "bfloat16"):
        around.add(product)
        product = product.args[0]
    choice = _choice(token.args[0]) if kind(token) == "getitem" else None
    if choice is None or not choice.tokens(token) or kind(product) != "mul":
        return None
    for made, weight in (product.args[:2], product.args[1::-1]):
        weighed = _weights(weight, choice)
        taken = _reached(made, choice) if weighed else None
        if weighed and taken:
            rows, source, read = taken
            between_them = frozenset({*around, product, *read, *weighed[1]})
            return Turn(choice, source, weighed[0], rows, made, node, between_them)
    return None


def _choice(where: Any) -> Choice | None:
    """What ``torch.where(chosen == n)`` asks, or ``torch.where(mask[n])`` of a mask that is made of ``F.one_hot(chosen)``."""
    if kind(where) != "where" or len(where.args) != 1:
        return None
    mask = where.args[0]
    if kind(mask) == "eq":
        chosen, number = mask.args[:2]
        found = Choice(where, chosen, number, 0, mask)
    else:
        hot = mask.args[0] if kind(mask) == "getitem" else None
        dims = _turned(hot) if kind(hot) == "permute" else (2, 0, 1)  # what of [tokens, k, experts] is where
        classes = hot.args[0] if hot is not None and kind(hot) == "permute" else hot
        if dims is None or dims[0] != 2 or not (hot is classes or type(mask.args[1]) is int):
            return None
        if getattr(getattr(classes, "target", None), "__name__", "") != "one_hot":
            return None
        number = mask.args[1] if hot is not classes else _last(mask.args[1])
        chosen = argument(classes, 0, "input", "self")
        if argument(classes, 1, "num_classes", default=-1) != _choices(chosen):
            return None
        found = Choice(where, chosen, number, dims.index(0) - 1, classes)
    return found if isinstance(found.chosen, fx.Node) and type(found.number) is int else None


def _turned(permuted: fx.Node) -> tuple[int, ...] | None:
    """The order of a permutation of three dimensions."""
    order = permuted.args[1] if len(permuted.args) == 2 else permuted.args[1:]
    if not isinstance(order, (tuple, list)) or not all(isinstance(dim, int) for dim in order) or len(order) != 3:
        return None
    return tuple(int(dim) % 3 for dim in order)


def _last(index: Any) -> Any:
    """n of ``[..., n]`` and of ``[:, :, n]``."""
    whole = isinstance(index, tuple) and (index[:-1] == (Ellipsis,) or index[:-1] == (slice(None), slice(None)))
    return index[-1] if whole else None


def _weights(node: Any, choice: Choice) -> tuple[fx.Node, list[fx.Node]] | None:
    """The weights of which the node is ``weights[token, rank, None]``, and the nodes that take them."""
    nodes, column = [node], False
    if (kind(node) == "unsqueeze" and argument(node, 1, "dim") in (-1, 1)) or (
        kind(node) == "getitem" and node.args[1] in ((slice(None), None), (Ellipsis, None))
    ):
        column = True
    if column:
        node = node.args[0]
        nodes.append(node)
    index = node.args[1] if kind(node) == "getitem" else None
    if not isinstance(index, tuple) or len(index) != (2 if column else 3) or index[2:] != (() if column else (None,)):
        return None
    return (node.args[0], nodes) if choice.tokens(index[0]) and choice.ranks(index[1]) else None


def _rows(node: Any, choice: Choice) -> tuple[fx.Node, list[fx.Node]] | None:
    """What the node takes the rows of the tokens of, and the nodes that do."""
    if kind(node) in ("reshape", "view"):
        inner = node.args[0]
        sizes = node.args[1] if len(node.args) == 2 else node.args[1:]
        index = inner.args[1] if kind(inner) == "getitem" else None
        one = isinstance(index, tuple) and len(index) == 2 and index[0] is None and choice.tokens(index[1])
        source = value(inner.args[0]) if one else None
        if source is None or source.dim() != 2 or tuple(sizes) != (-1, source.shape[1]):
            return None
        return inner.args[0], [node, inner]
    index = node.args[1] if kind(node) == "getitem" else None
    if isinstance(index, tuple) and len(index) == 2 and index[1] in (slice(None), Ellipsis):
        index = index[0]
    return (node.args[0], [node]) if choice.tokens(index) else None


def _reached(made: Any, choice: Choice) -> tuple[fx.Node, fx.Node, list[fx.Node]] | None:
    """``x[token]``, which all that the expert computes comes from, `x`, and the nodes that take the rows."""
    todo, seen, found = [made], set(), {}
    while todo:
        node = todo.pop()
        if not isinstance(node, fx.Node) or node in seen or node.op in ("placeholder", "get_attr"):
            continue
        seen.add(node)
        if taken := _rows(node, choice):
            found[node] = taken
        else:
            todo += node.all_input_nodes
    if len(found) != 1:
        return None
    ((rows, (source, nodes)),) = found.items()
    return rows, source, nodes


def read_loop(out: fx.Node, turns: list[Turn]) -> tuple[list[Turn], list[list[fx.Node]], set[fx.Node]]:
    """The turns in the order of their experts, what each expert computes, and all nodes that go with the loop. Raises `Left`
    where it is no loop over all experts that each token may choose, or something else depends on what is inside of it."""
    first, last, count = turns[0], turns[-1].added, len(turns)
    source, weights, chosen = value(first.source), value(first.weights), value(first.choice.chosen)
    if len({(t.choice.chosen, t.source, t.weights) for t in turns}) > 1:
        raise Left("its experts do not read the same tensors")
    if source is None or weights is None or chosen is None or value(out) is None or source.dim() != 2:
        raise Left("its tokens are not the rows of one matrix")
    if chosen.dim() != 2 or chosen.shape != weights.shape or len(chosen) != len(source):
        raise Left("its tokens and their weights differ in number")
    if sorted(t.choice.number for t in turns) != list(range(count)) or _choices(first.choice.chosen) != count:
        raise Left("a token may choose an expert outside of the loop")
    added = {turn.added for turn in turns}
    if kind(out) not in ("zeros_like", "zeros", "new_zeros") or any(u < last and u not in added for u in out.users):
        raise Left("the tensor that it adds to does not start as zeros")
    turns = sorted(turns, key=lambda turn: turn.choice.number)
    bodies = [_body(turn) for turn in turns]
    if any(_spelled(turn, body) != _spelled(turns[0], bodies[0]) for turn, body in zip(turns, bodies, strict=True)):
        raise Left("its experts are not alike")
    own = {node for turn in turns for node in _after(turn.choice.where)}
    known = {node for body in bodies for node in body} | {node for turn in turns for node in turn.around}
    wheres = {turn.choice.where for turn in turns}
    if any(not (_of_sizes(node) or (kind(node) == "getitem" and node.args[0] in wheres)) for node in own - known):
        raise Left("an expert's result, or the choice of experts, is used elsewhere")
    chosen_by = {storage(item) for turn in turns for item in (turn.choice.chosen, turn.choice.mask)}
    memory = {storage(first.source), storage(first.weights), *chosen_by}
    start = min(wheres)
    if any(may_touch(node, chosen_by) for node in between(first.choice.chosen, start)):
        raise Left("a token may choose an expert outside of the loop: the choice is written to")
    inside = between(start, last)
    if any(switches_mode(n) or (n not in own and written(n) and may_touch(n, memory)) for n in inside):
        raise Left("a tensor is written, or autocast changes, inside of it")
    return turns, bodies, own


def _spelled(turn: Turn, body: list[fx.Node]) -> list[Any]:
    """An expert's computation without its weights."""
    known: dict[Any, str] = {turn.rows: "rows", **{node: f"#{k}" for k, node in enumerate(body)}}
    return [
        (node.op, node.target, map_aggregate((node.args, node.kwargs), lambda leaf: known.get(leaf, "weight") if isinstance(leaf, fx.Node) else leaf))
        for node in body
    ]  # fmt: skip


def _of_sizes(node: fx.Node) -> bool:
    return str(getattr(node.target, "__name__", "")).partition(".")[0] in _OF_SIZES


def _choices(chosen: fx.Node) -> int | None:
    """Of how many numbers each is one, where they are the indices of ``torch.topk``."""
    top = chosen.args[0] if kind(chosen) == "getitem" and chosen.args[1] == 1 else None
    given = value(argument(top, 0, "input", "self")) if kind(top) == "topk" else None
    return (
        given.shape[-1] if given is not None and argument(top, 2, "dim", default=-1) in (-1, given.dim() - 1) else None
    )


def _body(turn: Turn) -> list[fx.Node]:
    """What an expert computes, in order: from its rows to what it makes of them."""
    found: set[fx.Node] = set()
    todo = [turn.made]
    while todo:
        node = todo.pop()
        if node in found or node is turn.rows:
            continue
        layer = projection(node) if kind(node) == "linear" else None
        if layer and is_dense_input(layer[1]) and (layer[2] is None or is_dense_input(layer[2])):
            todo.append(layer[0])
        elif _by_row(node):
            todo += node.all_input_nodes
        else:
            raise Left(f"an expert computes more than linear layers and elementwise functions ({node.name})")
        found.add(node)
    return sorted(found)


def _by_row(node: fx.Node) -> bool:
    if kind(node) == "getitem":
        return kind(node.args[0]) == "chunk"
    if kind(node) == "chunk":
        return argument(node, 2, "dim", default=0) in (-1, 1)
    return kind(node) in _BY_ROW and not written(node) and bool(node.all_input_nodes)


def _after(where: fx.Node) -> set[fx.Node]:
    """All that depends on which tokens chose an expert."""
    found: set[fx.Node] = set()
    todo = list(where.users)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.users
    return found
