"""A layer of which only some rows are read computes only those: the last token's logits, not all tokens'.

Nothing is assumed about what the caller needs: the slice must stand in the captured graph (`logits[:, -1]` in the
workload's own forward), and the whole result may be read nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from rung.rewrites.graph.layout import STRIDE_READERS
from rung.rewrites.graph.normalize import argument, cast_source, in_place, kind, names, scaled, source_line, value
from rung.rewrites.graph.writes import aliases, between, may_touch, opaque, storage, switches_mode
from rung.rewrites.horizontal_fusion import projection

_POINTWISE = names("tanh sigmoid relu gelu silu dropout")


def narrow_logits(graph: fx.Graph) -> tuple[int, list[str]]:
    """Take the slice before the layer, wherever that computes the same; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        if node._erased or node.op not in ("call_function", "call_method") or projection(node) is None:
            continue
        chain = _chain(node)
        if chain is None:
            continue
        if isinstance(chain, str):
            skipped.append(f"linear at {source_line(node)}: {chain}")
        else:
            _rewrite(graph, node, *chain)
            count += 1
    return count, skipped


def _chain(layer: fx.Node) -> tuple[list[fx.Node], fx.Node, tuple[Any, ...]] | str | None:
    """(pointwise operations, the slice, its index) below a layer; why it must stay; None where there is no slice."""
    path: list[fx.Node] = []
    node = layer
    while True:
        slices = [user for user in node.users if index_of(user) is not None]
        if len(node.users) != 1:
            fewer = [user for user in slices if _elements(user) < _elements(layer)]
            return "its whole result is used elsewhere" if fewer else None
        user = next(iter(node.users))
        index = index_of(user)
        if index is not None:
            if _elements(user) >= _elements(layer):
                return None
            return _obstacle(layer, user, path) or (path, user, index)
        if cast_source(user) is not node and not _pointwise(user, node):
            return None
        path.append(user)
        node = user


def _pointwise(user: fx.Node, node: fx.Node) -> bool:
    step = scaled(user)
    if in_place(user) or (kind(user) == "dropout" and argument(user, 2, "training", "train", default=True)):
        return False
    return (step is not None and step[0] is node) or (kind(user) in _POINTWISE and user.all_input_nodes == [node])


def _elements(node: fx.Node) -> int:
    tensor = value(node)
    return tensor.numel() if tensor is not None else 0


def index_of(node: fx.Node) -> tuple[Any, ...] | None:
    """The index of ``x[...]`` over leading dimensions only, by whole numbers and slices."""
    source = value(node.args[0]) if kind(node) == "getitem" and len(node.args) == 2 else None
    if source is None or value(node) is None:
        return None
    given = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(isinstance(item, (fx.Node, torch.Tensor, list, bool)) or item is None for item in given):
        return None
    if Ellipsis in given:
        spot = given.index(Ellipsis)
        given = (*given[:spot], *(slice(None),) * (source.dim() - len(given) + 1), *given[spot + 1 :])
    plain = all(isinstance(item, int) or _plain_slice(item) for item in given)
    if not plain or len(given) > source.dim() or (len(given) == source.dim() and given[-1] != slice(None)):
        return None
    return tuple(given[: source.dim() - 1])


def _plain_slice(item: Any) -> bool:
    parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    return isinstance(item, slice) and all(part is None or isinstance(part, int) for part in parts)


def _obstacle(layer: fx.Node, end: fx.Node, path: list[fx.Node]) -> str:
    read = projection(layer)
    assert read is not None
    memory = {storage(item) for item in (*read, layer) if isinstance(item, fx.Node)}
    readers = [user for alias in aliases(end) for user in alias.users]
    if any(opaque(user) or kind(user) in STRIDE_READERS for user in readers):
        return "an operation reads the strides of its rows"
    for node in between(layer, end):
        if switches_mode(node) or may_touch(node, memory):
            return "a tensor is written, or autocast changes, before its rows are taken"
    return ""


def _rewrite(graph: fx.Graph, layer: fx.Node, path: list[fx.Node], end: fx.Node, index: tuple[Any, ...]) -> None:
    source = layer.args[0] if layer.args else layer.kwargs["input"]
    with graph.inserting_before(end):
        kept = graph.call_method("__getitem__", (source, index))
        made = {layer: graph.node_copy(layer, lambda node: kept if node is source else node)}
        for step in path:
            made[step] = graph.node_copy(step, lambda node: made.get(node, node))
    for old, new in made.items():
        new.meta = dict(old.meta)
        new.meta["example_value"] = old.meta["example_value"][index]
    last = made[path[-1] if path else layer]
    last.meta = dict(end.meta)
    end.replace_all_uses_with(last)
    for node in (end, *reversed(path), layer):
        graph.erase_node(node)
