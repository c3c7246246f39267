"""Attention of one query a head under a mask, as decoding on a cache of fixed size has it: a Triton kernel, which shares the
keys out among the multiprocessors (rung.kernels.decode_attention). SDPA's kernels that take a mask leave all keys of a
head to one program; without a mask its flash kernel shares them out itself."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from rung.rewrites.attention.mask_free import each_call, sdpa_options, take_place, unrepeated
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.constants import first_alike
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, number, value


def fuse_decoding(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such call; how many, and why not others."""
    return each_call(graph, partial(_rewrite, alike=first_alike(graph)))


def _rewrite(graph: fx.Graph, node: fx.Node, alike: dict[fx.Node, fx.Node]) -> str | None:
    """None where the call was rewritten; "" where it is no such call; otherwise why it was left."""
    query, key, values = (argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    tensors, options = [value(item) for item in (query, key, values)], sdpa_options(node)
    if options is None or any(t is None or t.dim() != 4 for t in tensors):
        return ""
    q, k, v = (t for t in tensors if t is not None)
    mask, shape = options["attn_mask"], value(options["attn_mask"])
    if q.shape[2] != 1 or not isinstance(mask, fx.Node) or shape is None:
        return ""
    if shape.dtype != torch.bool:
        return "its mask is added to the scores, and does more than hide keys"
    sizes = (1,) * (4 - shape.dim()) + tuple(shape.shape)
    if sizes[1:] != (1, 1, k.shape[2]) or sizes[0] not in (1, q.shape[0]):
        return "its mask differs from head to head"
    scale = options["scale"]
    if options["dropout_p"] or options["is_causal"] or (scale is not None and number(scale) is None):
        return "it has dropout, or a scale that is not a plain number"
    if any(t.requires_grad for t in (q, k, v)) and torch.is_grad_enabled():
        return "its kernel has no gradient"
    if not q.dtype == k.dtype == v.dtype or q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3]:
        return "its inputs differ in dtype or size"
    whole = value(node)
    if whole is None or (whole.shape, whole.dtype) != ((*q.shape[:3], v.shape[3]), q.dtype):
        return "its result has another size or dtype than its kernel's (one query head for all keys, autocast)"
    if reason := kernel_ops.obstacle(q, k, v):
        return reason
    if not options["enable_gqa"]:
        key, values = unrepeated(node, key, values, q) or (key, values)
    copied = free_readers(node)
    with graph.inserting_before(node):
        keep = graph.call_method("reshape", (alike.get(mask, mask), sizes[0], sizes[3]))
        arguments = (query, key, values, keep, float(q.shape[-1] ** -0.5 if scale is None else scale))
        made = graph.call_function(kernel_ops.operator("decode_attention"), arguments)
    take_place(node, made, mask, dense=copied)
    return None
