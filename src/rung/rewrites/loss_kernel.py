"""Cross-entropy over logits that are there becomes one call of a Triton kernel (rung.kernels.cross_entropy).

The logits are read in the dtype in which they were made: widening, and regrouping of rows, before the loss is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from rung.rewrites.cross_entropy import odd_loss, regroups
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.constants import sweep
from rung.rewrites.graph.normalize import (
    argument,
    cast_source,
    in_place,
    kind,
    number,
    permutation,
    source_line,
    value,
)
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode


def fuse_loss(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every cross-entropy; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        if node._erased or kind(node) != "cross_entropy":
            continue
        reason = _obstacle(node)
        if reason:
            skipped.append(f"cross-entropy at {source_line(node)}: {reason}")
        else:
            _rewrite(graph, node)
            count += 1
    return count, skipped


def _obstacle(loss: fx.Node) -> str:
    given = argument(loss, 0, "input"), argument(loss, 1, "target")
    logits, target = (value(item) for item in given)
    if logits is None or target is None or logits.dim() < 2:
        return "the logits are not rows of classes of fixed size"
    if target.dtype != torch.int64 or target.shape != (logits.shape[0], *logits.shape[2:]):
        return "its targets are not class numbers"
    if reason := odd_loss(loss):
        return reason
    if number(argument(loss, 7, "label_smoothing", default=0.0)) is None:
        return "its label smoothing is not a plain number"
    if not logits.requires_grad:
        return "no gradient flows through it"
    return kernel_ops.obstacle(logits, target)


def _source(loss: fx.Node) -> fx.Node:
    """The logits as they were made: [..., classes], in the order of the loss's own rows, or as the loss has them."""
    node = argument(loss, 0, "input")
    if value(node).dim() > 2:  # type: ignore[union-attr]
        turned = permutation(node)
        rank = value(node).dim()  # type: ignore[union-attr]
        if turned is None or turned[1] != [0, rank - 1, *range(1, rank - 1)]:
            return node
        node = turned[0]
    while not in_place(node):
        above = _wider(node) or (node.args[0] if regroups(node) else None)
        if not isinstance(above, fx.Node) or not _still(above, loss):
            break
        node = above
    return node


def _wider(node: fx.Node) -> fx.Node | None:
    """x where the node is x in a wider dtype."""
    source = cast_source(node)
    before, after = value(source), value(node)
    return source if before is not None and after is not None and before.itemsize <= after.itemsize else None


def _still(source: fx.Node, loss: fx.Node) -> bool:
    """Whether the loss may read it as well as whoever read it so far."""
    return not any(may_touch(node, {storage(source)}) or switches_mode(node) for node in between(source, loss))


def _rewrite(graph: fx.Graph, loss: fx.Node) -> None:
    node, target, result = argument(loss, 0, "input"), argument(loss, 1, "target"), value(loss)
    assert result is not None
    source = _source(loss)
    rank, classes = value(node).dim(), value(node).shape[1]  # type: ignore[union-attr]
    ignored = argument(loss, 4, "ignore_index", default=-100)
    smoothing = float(argument(loss, 7, "label_smoothing", default=0.0))
    reduction = argument(loss, 6, "reduction", default="mean")
    before = loss.prev
    with graph.inserting_before(loss):
        if source is node and rank > 2:  # the classes are the second dimension, in memory too
            source = graph.call_method("movedim", (source, 1, -1))
        rows = graph.call_method("reshape", (source, -1, classes))
        labels = graph.call_method("reshape", (target, -1))
        outputs = graph.call_function(kernel_ops.operator("cross_entropy"), (rows, labels, ignored, smoothing))
        total: Any = graph.call_method("__getitem__", (outputs, 0))
        if reduction == "none":
            total = graph.call_method("reshape", (total, tuple(result.shape)))
        else:
            total = graph.call_method("sum", (total,))
        if reduction == "mean":
            counted = graph.call_method("sum", (graph.call_function(torch.ne, (labels, ignored)),))
            total = graph.call_function(torch.div, (total, counted))
        if result.dtype != torch.float32:
            total = graph.call_method("to", (total, result.dtype))
    for made in between(before, loss):
        made.meta["stack_trace"] = loss.meta.get("stack_trace")
    total.meta = dict(loss.meta)
    loss.replace_all_uses_with(total)
    graph.erase_node(loss)
    sweep([node])
