"""Cross-entropy over a linear layer's output becomes one chunked function of the layer's input (chunked.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from rung.rewrites.chunked import linear_cross_entropy
from rung.rewrites.graph.normalize import argument, cast_source, in_place, kind, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode
from rung.rewrites.horizontal_fusion import projection
from rung.rewrites.logits import index_of

LEAST_BYTES = 2**27  # of float32 logits: below, holding them all costs little


@dataclass
class _Path:
    """layer: the projection that makes the logits; steps: what lies between it and the loss, first to last."""

    layer: fx.Node
    steps: list[fx.Node] = field(default_factory=list)


def fuse_cross_entropy(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every cross-entropy of a layer's output; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        if node._erased or kind(node) != "cross_entropy":
            continue
        path = _path(node)
        if path is None:
            continue
        reason = path if isinstance(path, str) else _obstacle(node, path)
        if reason:
            skipped.append(f"cross-entropy at {source_line(node)}: {reason}")
        elif isinstance(path, _Path):
            _rewrite(graph, node, path)
            count += 1
    return count, skipped


def _path(loss: fx.Node) -> _Path | str | None:
    steps: list[fx.Node] = []
    node = argument(loss, 0, "input")
    while isinstance(node, fx.Node) and projection(node) is None:
        if cast_source(node) is None and index_of(node) is None and not regroups(node):
            return None  # the logits are not a layer's own: capped, scaled, from a convolution
        steps.append(node)
        node = node.args[0]
    if not isinstance(node, fx.Node):
        return None
    for item in (node, *steps):
        if len(item.users) != 1:
            if any(user.op == "output" for user in _followers(item)):
                return "the logits are returned, so they must be computed anyway; with Workload(output=False) a training step returns its loss alone"
            return "the logits are used elsewhere, so they must be computed anyway"
    return _Path(node, steps[::-1])


def _followers(node: fx.Node) -> list[fx.Node]:
    """The users, through views and detached copies."""
    followers = []
    for user in node.users:
        followers.append(user)
        if kind(user) in ("detach", "view", "reshape", "float", "to"):
            followers += _followers(user)
    return followers


def regroups(node: fx.Node) -> bool:
    """The same values with other leading dimensions; rows stay rows."""
    if kind(node) not in ("view", "reshape", "flatten", "contiguous") or not node.args:
        return False
    before, after = value(node.args[0]), value(node)
    same = before is not None and after is not None and before.shape[-1:] == after.shape[-1:]
    return same and before is not None and after is not None and before.dtype == after.dtype


def _obstacle(loss: fx.Node, path: _Path) -> str:
    logits, target = value(argument(loss, 0, "input")), value(argument(loss, 1, "target"))
    made = value(path.layer)
    if logits is None or target is None or made is None or logits.dim() != 2:
        return "the logits are not [rows, classes] of fixed size"
    if target.dtype != torch.int64 or target.dim() != 1:
        return "its targets are not class numbers"
    if reason := odd_loss(loss):
        return reason
    if argument(loss, 7, "label_smoothing", default=0.0) != 0.0:
        return "it has label smoothing"
    if argument(loss, 6, "reduction", default="mean") not in ("mean", "sum"):
        return "it is not reduced to one number"
    if made.dtype == torch.float16 and made.requires_grad:
        return "its gradients would be rounded to float16 before a scale of the loss (GradScaler) reaches them"
    if logits.dtype == torch.float64:
        return "its sums would be taken in float32, and the logits are float64"
    if any(in_place(step) for step in path.steps):
        return "the logits are written in place"
    read = [item for item in projection(path.layer) or () if isinstance(item, fx.Node)]
    memory = {storage(item) for item in (*read, path.layer)}
    if any(switches_mode(node) or may_touch(node, memory) for node in between(path.layer, loss)):
        return "a tensor is written, or autocast changes, between the layer and the loss"
    size = logits.numel() * 4
    if size < LEAST_BYTES:
        return f"its logits are {size / 2**20:.0f} MiB in float32: small enough to keep"
    return ""


def odd_loss(loss: fx.Node) -> str:
    """Why no kernel computes a cross-entropy as it is asked for; "" where one may."""
    if argument(loss, 2, "weight") is not None:
        return "it has class weights"
    if argument(loss, 3, "size_average") is not None or argument(loss, 5, "reduce") is not None:
        return "it uses torch's deprecated arguments for the reduction"
    if not isinstance(argument(loss, 4, "ignore_index", default=-100), int):
        return "its ignore_index is not a plain number"
    return ""


def _rewrite(graph: fx.Graph, loss: fx.Node, path: _Path) -> None:
    read = projection(path.layer)
    assert read is not None
    made, result = value(path.layer), value(loss)
    assert made is not None
    assert result is not None
    hidden, weight, bias = read
    width = value(weight).shape[1]  # type: ignore[union-attr]
    mean = argument(loss, 6, "reduction", default="mean") == "mean"
    ignored = argument(loss, 4, "ignore_index", default=-100)
    with graph.inserting_before(loss):
        for step in path.steps:
            index = index_of(step)
            if index is not None:
                hidden = graph.call_method("__getitem__", (hidden, index))
            elif cast_source(step) is None:
                hidden = graph.call_method("reshape", (hidden, (*value(step).shape[:-1], width)))  # type: ignore[union-attr]
        # Autocast's choice for the layer, which the function does not see.
        parts: list[Any] = [
            None if item is None else graph.call_method("to", (item, made.dtype)) for item in (hidden, weight, bias)
        ]
        total = graph.call_function(linear_cross_entropy, (*parts, argument(loss, 1, "target"), ignored, mean))
        if result.dtype != torch.float32:
            total = graph.call_method("to", (total, result.dtype))
    for node in between(path.layer, loss):
        node.meta.setdefault("stack_trace", loss.meta.get("stack_trace"))
    total.meta = dict(loss.meta)
    loss.replace_all_uses_with(total)
    for node in (loss, *reversed(path.steps), path.layer):
        graph.erase_node(node)
