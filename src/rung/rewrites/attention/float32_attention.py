"""SDPA calls in float32, with the causal mask or none, by a Triton kernel whose products are TF32 as Hopper takes them."""

from __future__ import annotations

import operator

import torch
from torch import fx

from rung.hardware.device import matmul_precision_name
from rung.rewrites.attention.mask_free import each_call, sdpa_options, take_place, unrepeated
from rung.rewrites.attention.masks import Mask, is_causal
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, number, value

WIDTHS = (64, 128)  # of a head: what its blocks are made for
FARTHEST = 2**31  # elements from a sequence's first row to its last: offsets inside of it are 32 bits


def fuse_float32(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such call; how many, and why not others."""
    return each_call(graph, _rewrite)


def _rewrite(graph: fx.Graph, node: fx.Node) -> str | None:
    """None where the call was rewritten; "" where it is no such call; otherwise why it was left."""
    query, key, values = (argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    tensors, options = [value(item) for item in (query, key, values)], sdpa_options(node)
    if options is None or any(t is None or t.dim() != 4 or t.dtype != torch.float32 for t in tensors):
        return ""
    q, k, v = (t for t in tensors if t is not None)
    mask, scale, causal = options["attn_mask"], options["scale"], bool(options["is_causal"])
    if q.shape[2] != k.shape[2]:
        return ""
    if mask is not None:
        shape = value(mask)
        causal = shape is not None and is_causal(Mask(mask, "keep" if shape.dtype == torch.bool else "add"), q.shape[2])
        if not causal:
            return ""
    if options["dropout_p"] or (scale is not None and number(scale) is None):
        return "it has dropout, or a scale that is not a plain number"
    if q.shape[0] != k.shape[0] or k.shape != v.shape or q.shape[3] != k.shape[3]:
        return "its inputs differ in size, or are broadcast"
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        return "its number of query heads is not a multiple of its number of key heads"
    whole = value(node)
    if whole is None or (whole.shape, whole.dtype) != (q.shape, q.dtype):
        return "its result has another size or dtype than its kernel's (autocast)"
    if reason := obstacle(q, k, v):
        return reason
    if q.shape[3] not in WIDTHS:
        return f"its heads have {q.shape[3]} elements; the kernel takes {' or '.join(map(str, WIDTHS))}"
    if any(t.shape[2] * t.stride(2) >= FARTHEST for t in (q, k, v)):
        return "the rows of a sequence are too far apart for 32-bit offsets"
    key, values = unrepeated(node, key, values, q) or (key, values)
    # Read while the graph is compiled: where products are to be exact, the kernel's are.
    tf32 = matmul_precision_name() != "highest"
    with graph.inserting_before(node):
        arguments = (query, key, values, causal, float(q.shape[3] ** -0.5 if scale is None else scale), tf32)
        outputs = graph.call_function(kernel_ops.operator("float32_attention"), arguments)
        made = graph.call_function(operator.getitem, (outputs, 0))
    take_place(node, made, mask, dense=free_readers(node))
    return None


def obstacle(*tensors: torch.Tensor) -> str:
    """Why its kernel does not run on these; "" where it does."""
    if reason := kernel_ops.obstacle(*tensors):
        return reason
    if tensors[0].is_cuda and (torch.version.hip or torch.cuda.get_device_capability(tensors[0].device) != (9, 0)):
        return "its kernel is made for sm90"
    return ""
