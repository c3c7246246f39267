"""Attention over few keys by torch's memory-efficient kernel, where torch would ask cuDNN first.

Windows of an image are such: 49 tokens, thousands of times. cuDNN's kernels are made for blocks of 128 queries, and wait on those.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.nn import attention

from rung.rewrites.attention.mask_free import each_call, sdpa_options, take_place
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, value

# Keys, and queries, up to which the memory-efficient kernel is the faster one. On one H200 it takes 0.30 to 0.79 of cuDNN's time at 16 to 64
# tokens, going forward or back, and 1.05 to 2.3 times as long at 77 to 144 (benchmarks/kernels/short_attention.py).
LONGEST = 64


def first(kind: attention.SDPBackend) -> list[attention.SDPBackend]:
    """An order of torch's kernels for attention: this one, then the others. What is switched off stays off."""
    kinds, cuda = attention.SDPBackend, torch.backends.cuda
    on = {
        kinds.CUDNN_ATTENTION: cuda.cudnn_sdp_enabled(),
        kinds.FLASH_ATTENTION: cuda.flash_sdp_enabled(),
        kinds.EFFICIENT_ATTENTION: cuda.mem_efficient_sdp_enabled(),
        kinds.MATH: cuda.math_sdp_enabled(),
    }
    return sorted((one for one, enabled in on.items() if enabled), key=lambda one: one is not kind)


def short_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """F.scaled_dot_product_attention, for which the memory-efficient kernel is asked first. options: its other arguments."""
    with attention.sdpa_kernel(first(attention.SDPBackend.EFFICIENT_ATTENTION), set_priority=True):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **options)


short_attention.spells = "scaled_dot_product_attention"  # type: ignore[attr-defined]  # to other passes it is such a call


def run_short(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every SDPA call of few queries and keys; how many, and why not others."""
    return each_call(graph, _rewrite)


def _rewrite(graph: fx.Graph, node: fx.Node) -> str | None:
    """None where the call was rewritten; "" where there is nothing to do; otherwise why it was left."""
    arguments = tuple(argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    query, key = (value(item) for item in arguments[:2])
    options = sdpa_options(node)
    if query is None or key is None or options is None or query.dim() != 4 or key.dim() != 4:
        return ""
    queries, keys = query.shape[2], key.shape[2]
    if max(queries, keys) > LONGEST or min(queries, keys) < 2:
        return f"{queries} queries and {keys} keys; it is for 2 to {LONGEST} of both"
    if options["enable_gqa"]:
        return "its heads share keys, which the memory-efficient kernel does not take"
    mask = options.pop("attn_mask")
    with graph.inserting_before(node):
        made = graph.call_function(short_attention, (*arguments, mask), options)
    take_place(node, made, None, dense=free_readers(node))
    return None
