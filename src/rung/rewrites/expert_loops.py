"""What a loop over experts is in the captured graph.

for number, expert in enumerate(experts):
    token, rank = torch.where(chosen == number)
    out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.fx.node import map_aggregate

from rung.rewrites.graph.normalize import ELEMENTWISE, argument, in_place, kind, names, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode, written
from rung.rewrites.siblings import plain, projection

# What computes every row by itself: the rows of all experts may then go through it together.
_BY_ROW = ELEMENTWISE - names("dropout type_as")
# What Dynamo notes of a size that it does not know; that of torch 2.10 calls `torch._check_is_size`, too.
_OF_SIZES = names("sym_size ge le gt lt eq _assert_scalar _check_is_size")


@dataclass(frozen=True)
class Turn:
    """One expert: its number, which tokens chose it, what it makes of their rows, and where that is added; weighed: what
    stands between the two."""

    number: int
    chosen: fx.Node
    source: fx.Node
    weights: fx.Node
    rows: fx.Node
    made: fx.Node
    where: fx.Node
    added: fx.Node
    weighed: tuple[fx.Node, ...]


class Left(Exception):
    """Why a loop is left as it is."""


def turn_of(node: fx.Node) -> Turn | None:
    """The turn that ends in this node."""
    if kind(node) != "index_add" or not in_place(node) or node.args[1] != 0 or len(node.args) != 4 or node.kwargs:
        return None
    token, product, weighed = node.args[2], node.args[3], []
    while kind(product) in ("to", "type", "float", "half", "bfloat16"):
        weighed.append(product)
        product = product.args[0]
    spot = _part(token, 0)
    if spot is None or kind(product) != "mul":
        return None
    where, which = spot
    for made, weight in (product.args[:2], product.args[1::-1]):
        index = weight.args[1] if kind(weight) == "getitem" else None
        if isinstance(index, tuple) and len(index) == 3 and index[2] is None and _same_part(index, where):
            rows = _reached(made, where)
            if rows is not None:
                return Turn(
                    which[1],
                    which[0],
                    rows.args[0],
                    weight.args[0],
                    rows,
                    made,
                    where,
                    node,
                    (*weighed, product, weight),
                )
    return None


def _part(node: Any, number: int) -> tuple[fx.Node, tuple[fx.Node, int]] | None:
    """(where, (chosen, n)) where the node is ``torch.where(chosen == n)[number]``."""
    if kind(node) != "getitem" or node.args[1] != number:
        return None
    where = node.args[0]
    if kind(where) != "where" or len(where.args) != 1 or kind(where.args[0]) != "eq":
        return None
    chosen, which = where.args[0].args[:2]
    return (where, (chosen, which)) if isinstance(chosen, fx.Node) and type(which) is int else None


def _same_part(index: tuple[Any, ...], where: fx.Node) -> bool:
    return all((part := _part(index[k], k)) is not None and part[0] is where for k in (0, 1))


def _reached(made: Any, where: fx.Node) -> fx.Node | None:
    """``x[token]``, which all that the expert computes comes from."""
    todo, seen, found = [made], set(), set()
    while todo:
        node = todo.pop()
        if not isinstance(node, fx.Node) or node in seen or node.op in ("placeholder", "get_attr"):
            continue
        seen.add(node)
        part = _part(node.args[1], 0) if kind(node) == "getitem" else None
        if part is not None and part[0] is where:
            found.add(node)
        else:
            todo += node.all_input_nodes
    return found.pop() if len(found) == 1 else None


def read_loop(out: fx.Node, turns: list[Turn]) -> tuple[list[Turn], list[list[fx.Node]], set[fx.Node]]:
    """The turns in the order of their experts, what each expert computes, and all nodes that go with the loop. Raises `Left`
    where it is no loop over all experts that each token may choose, or something else depends on what is inside of it."""
    first, last, count = turns[0], turns[-1].added, len(turns)
    source, weights, chosen = value(first.source), value(first.weights), value(first.chosen)
    if any((t.chosen, t.source, t.weights) != (first.chosen, first.source, first.weights) for t in turns):
        raise Left("its experts do not read the same tensors")
    if source is None or weights is None or chosen is None or value(out) is None or source.dim() != 2:
        raise Left("its tokens are not the rows of one matrix")
    if chosen.dim() != 2 or chosen.shape != weights.shape or len(chosen) != len(source):
        raise Left("its tokens and their weights differ in number")
    if sorted(t.number for t in turns) != list(range(count)) or _choices(first.chosen) != count:
        raise Left("a token may choose what is none of its experts")
    added = {turn.added for turn in turns}
    if kind(out) not in ("zeros_like", "zeros", "new_zeros") or any(u < last and u not in added for u in out.users):
        raise Left("what it adds to is not zero before")
    turns = sorted(turns, key=lambda turn: turn.number)
    bodies = [_body(turn) for turn in turns]
    if any(_spelled(turn, body) != _spelled(turns[0], bodies[0]) for turn, body in zip(turns, bodies, strict=True)):
        raise Left("its experts are not alike")
    own = {node for turn in turns for node in _after(turn.where)}
    known = {node for body in bodies for node in body} | {n for t in turns for n in (t.rows, t.added, *t.weighed)}
    if any(not (_part(node, 0) or _part(node, 1) or _of_sizes(node)) for node in own - known):
        raise Left("something else reads what an expert makes, or who chose it")
    memory = {storage(item) for item in (first.source, first.weights, first.chosen)}
    start = min(turn.where for turn in turns)
    if any(may_touch(node, {storage(first.chosen)}) for node in between(first.chosen, start)):
        raise Left("a token may choose what is none of its experts: the choice is written to")
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
        if layer and plain(layer[1]) and (layer[2] is None or plain(layer[2])):
            todo.append(layer[0])
        elif _by_row(node):
            todo += node.all_input_nodes
        else:
            raise Left(f"an expert computes more than layers and functions of their elements ({node.name})")
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
