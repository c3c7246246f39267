"""SDPA calls whose mask is numbers that are added to the scores, by a Triton kernel that has the gradient of these, too.

Each call with dropout draws a seed in the graph, and its kernels draw the mask by that, forward as well as backward. So a compiled graph keeps
one number for a mask, recomputed regions draw the same seed again, and a replayed graph draws another.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import fx

from rung.kernels.configs import WIDEST, holds_bias
from rung.kernels.dropout import draw_seed
from rung.rewrites.attention.mask_free import each_call, sdpa_options, take_place
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, number, value


def attention_with_bias(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float, dropout_p: float
) -> torch.Tensor:
    """F.scaled_dot_product_attention(query, key, value, bias, dropout_p, scale=scale), by the kernel but in float64, which it does not take.
    query: [B, H, M, D], key: [B, H, N, D], value: [B, H, N, E], bias: [B or 1, H or 1, M, N] -> [B, H, M, E].

    In float32, in which it is verified, it is the kernel, too, and not faster. torch's call may be one that compiled code cannot run at all."""
    q, k, v, added = (kernel_ops.cast(each) for each in (query, key, value, bias))
    if q.dtype == torch.float64:
        return F.scaled_dot_product_attention(query, key, value, bias, dropout_p, scale=scale)
    # The kernel multiplies by log2(e), and the lowest numbers, with which masks are written, would become -inf: rows of such are a mean of
    # the values in torch, and rows of -inf are zeros.
    added = torch.where(added == -math.inf, added, added.clamp(min=torch.finfo(added.dtype).min / 2))
    seed = draw_seed(q.device) if dropout_p else None
    made: torch.Tensor = kernel_ops.operator("biased_attention")(q, k, v, added, scale, dropout_p, seed)[0]
    return made


attention_with_bias.reads_only = True  # type: ignore[attr-defined]


def add_bias(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such call; how many, and why not others."""
    return each_call(graph, _rewrite)


def _rewrite(graph: fx.Graph, node: fx.Node) -> str | None:
    """None where the call was rewritten; "" where it is no such call; otherwise why it was left."""
    given = tuple(argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    tensors, options = [value(item) for item in given], sdpa_options(node)
    bias = value(options["attn_mask"]) if options and options["attn_mask"] is not None else None
    if options is None or bias is None or not bias.dtype.is_floating_point:
        return ""
    if any(t is None or t.dim() != 4 for t in tensors):
        return "its inputs do not have four dimensions"
    q, k, v = (t for t in tensors if t is not None)
    if options["is_causal"] or options["enable_gqa"]:
        return "it is causal besides, or its heads share keys"
    dropout = number(options["dropout_p"])
    scale = number(options["scale"]) if options["scale"] is not None else float(q.shape[3] ** -0.5)
    if scale is None or dropout is None:
        return "its scale or dropout is not a plain number"
    if not q.shape[:2] == k.shape[:2] == v.shape[:2] or k.shape[2] != v.shape[2] or q.shape[3] != k.shape[3]:
        return "its inputs differ in size, or are broadcast"
    if not q.numel() or not v.numel():
        return "it is empty"
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"its heads have {max(q.shape[3], v.shape[3])} elements; the kernel takes up to {WIDEST}"
    if not holds_bias(q.shape[2], k.shape[2]):
        return "its mask is too large for offsets of 32 bits"
    if bias.dim() < 2 or bias.dim() > 4 or bias.shape[-2:] != (q.shape[2], k.shape[2]) or 0 in bias.stride()[-2:]:
        return "its mask is one row for all queries, which says which keys there are"
    lead = (1, 1, *bias.shape[:-2])[-2:]
    if any(size not in (1, whole) for size, whole in zip(lead, q.shape[:2], strict=True)):
        return "its mask has another number of sequences or heads"
    if reason := kernel_ops.obstacle(q, k, v, bias):
        return reason
    with graph.inserting_before(node):
        mask = options["attn_mask"]
        if bias.dim() < 4:
            mask = graph.call_method("reshape", (mask, (*lead, *bias.shape[-2:])))
        made = graph.call_function(attention_with_bias, (*given, mask, scale, dropout))
    take_place(node, made, None, dense=free_readers(node))
    return None
