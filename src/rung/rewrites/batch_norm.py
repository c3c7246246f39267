"""Batch norm that no longer learns from its batch is a scale and a shift: it goes into the convolution before it.

The folded weights are worked out in the graph, from the parameters and running statistics as they are: gradients reach all of
them. In inference `folded_weights.py` keeps their values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.graph.normalize import argument, called, computed, kind, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
STATISTIC = "rung_statistic"  # of an input that a folded batch norm reads


def fold_batch_norm(graph: fx.Graph) -> tuple[int, list[str]]:
    """Fold every batch norm in evaluation that follows a convolution; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        layer = argument(node, 0, "input") if node.target is F.batch_norm else None
        if layer is None or kind(layer) not in _CONVOLUTIONS:
            continue
        reason = _obstacle(layer, node)
        if reason:
            skipped.append(f"batch norm at {source_line(node)}: {reason}")
        else:
            _fold(graph, layer, node)
            count += 1
    return count, skipped


def _obstacle(layer: fx.Node, norm: fx.Node) -> str:
    if argument(norm, 5, "training", default=False) is not False:
        return "it uses the statistics of the batch, as in training"
    if len(layer.users) > 1:
        return "the convolution's result is used elsewhere, too"
    tensors = [item for item in (*layer.args[1:3], *norm.args[1:5]) if isinstance(item, fx.Node)]
    if layer.kwargs or {*norm.kwargs} - {"training", "momentum", "eps"} or len(tensors) < 3:
        return "its arguments are not in the form that torch's own modules use"
    values = [value(item) for item in tensors]
    if len({v.dtype for v in values if v is not None}) != 1 or None in values:
        return "weights and statistics have different dtypes"
    before, after = value(layer), value(norm)
    if before is None or after is None or before.dtype != after.dtype:
        return "it changes the dtype"
    weight = value(layer.args[1])
    if weight is None or before.dim() != weight.dim():
        return "the convolution's result has no batch, so its second dimension is not its channels"
    memory = {storage(item) for item in (*layer.all_input_nodes, layer)}
    if any(switches_mode(item) or may_touch(item, memory) for item in between(layer, norm)):
        return "a tensor is written, or autocast changes, in between"
    return ""


def _fold(graph: fx.Graph, layer: fx.Node, norm: fx.Node) -> None:
    weight, bias = layer.args[1], argument(layer, 2, "bias")
    mean, variance, gain, shift = (argument(norm, k) for k in range(1, 5))
    rank = value(weight).dim()  # type: ignore[union-attr]
    for statistic in (mean, variance):
        statistic.meta[STATISTIC] = True
    with graph.inserting_before(norm):
        scale = computed(graph, torch.add, variance, argument(norm, 7, "eps", default=1e-5))
        scale = computed(graph, torch.rsqrt, scale)
        if gain is not None:
            scale = computed(graph, torch.mul, scale, gain)
        folded = computed(graph, torch.mul, weight, called(graph, "reshape", scale, -1, *(1,) * (rank - 1)))
        offset = computed(graph, torch.neg, mean) if bias is None else computed(graph, torch.sub, bias, mean)
        offset = computed(graph, torch.mul, offset, scale)
        if shift is not None:
            offset = computed(graph, torch.add, offset, shift)
        made = graph.call_function(layer.target, (layer.args[0], folded, offset, *layer.args[3:]))
    for item in between(layer, norm):
        item.meta.setdefault("stack_trace", norm.meta.get("stack_trace"))
    made.meta = dict(norm.meta)
    norm.replace_all_uses_with(made)
    graph.erase_node(norm)
    graph.erase_node(layer)
