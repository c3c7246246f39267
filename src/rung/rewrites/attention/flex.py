"""Attention by FlexAttention: capped scores, sinks and sliding windows, which scaled_dot_product_attention cannot do; and calls of that by it:
those with a sliding window, whose hidden keys it computes, or all that FlexAttention can do."""

from __future__ import annotations

from unittest import mock

import torch
import torch.nn.functional as F
from torch import fx
from torch.utils._python_dispatch import _get_current_dispatch_mode

from rung.hardware.device import matmul_precision_name
from rung.rewrites.attention.mask_free import each_call, sdpa_options, take_place, unrepeated
from rung.rewrites.attention.masks import Mask, is_causal, window_of
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, number, value

NARROWEST = 16  # elements of a head, on a GPU: what Triton's matrix product takes
DECODED = 16  # rows of a block, the least that its product takes: what the kernel for decoding is for
# For TF32 on sm90, heads of 65 to 128: torch 2.11 takes blocks of 16 by 16 going back, and needs 1.85 times the time for it
# (benchmarks/kernels/tf32.py on one H100).
BLOCKS = {
    "fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_stages": 1, "fwd_num_warps": 8,
    "bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 32, "bwd_BLOCK_M2": 32, "bwd_BLOCK_N2": 32, "bwd_num_stages": 2, "bwd_num_warps": 4,
}  # fmt: skip


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    cap: float | None = None,
    causal: bool = False,
    window: int | None = None,
    sink: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(mask(cap * tanh(scale * q k))) v; without the cap: softmax(mask(scale * q k)) v.

    query [batch, heads, queries, width]; key and value with as many heads or a divisor of that. causal: a query sees the keys
    up to its own place; window: of those the last so many (equal lengths). sink [batch or 1, heads, queries or 1, 1]: a score more
    for each row of the softmax, which no value answers. Where nothing traces it, it is computed by other
    means: torch's own uncompiled form holds several float32 copies of the scores.
    """
    if _get_current_dispatch_mode() is None:
        return _untraced(query, key, value, scale, cap, causal, window, sink)
    from torch.nn.attention import flex_attention as flex

    # Without annotations: tracing keeps them with the graph, as text here, and Inductor could not keep compiled code then.
    def score(raw, b, h, i, j):  # type: ignore[no-untyped-def]
        return raw if cap is None else cap * torch.tanh(raw)

    def seen(b, h, i, j):  # type: ignore[no-untyped-def]
        return i >= j if window is None else (i >= j) & (i - j < window)

    if query.device.type == "cpu":
        # torch's kernel for CPUs (2.13 at least) reads one of them with another's strides where some are views and some are not.
        query, key, value = (x.clone(memory_format=torch.contiguous_format) for x in (query, key, value))
    blocks = None
    if causal or window is not None:
        blocks = flex.create_block_mask(seen, None, None, query.shape[2], key.shape[2], device=str(query.device))
    aux = getattr(flex, "AuxRequest", None)  # before torch 2.9 it is asked in another way for what else it knows
    asked = {} if sink is None else {"return_aux": aux(lse=True)} if aux else {"return_lse": True}
    # The graph being traced comes from Dynamo, for which torch's function would send for once more.
    with mock.patch.object(torch.compiler, "is_dynamo_compiling", return_value=True):
        out = flex.flex_attention(
            query, key, value, score, blocks, scale=scale, enable_gqa=key.shape[1] != query.shape[1],
            kernel_options=_options(query, key, value), **asked,
        )  # fmt: skip
    if sink is None:
        assert isinstance(out, torch.Tensor)
        return out
    out, told = out
    return _beside(out, told.lse if aux else told, sink)


def _beside(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Attention beside a sink, of that without: exp(lse) of a row's sum is its keys', exp(sink) is not. lse [batch, heads, queries]."""
    return (out * torch.sigmoid(lse[..., None] - sink)).to(out.dtype)


def _options(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, object] | None:
    if _larger(query, value):
        return dict(BLOCKS)
    # torch takes its kernel for decoding for fewer queries than 128, all heads of a group in one block: in float32, of 127
    # queries, two heads a group and a width of 64, no choice of blocks fits into an H100.
    if query.is_cuda and query.shape[2] > 1 and query.shape[2] * (query.shape[1] // key.shape[1]) > DECODED:
        return {"FORCE_USE_FLEX_ATTENTION": True}
    return None


def _larger(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether BLOCKS are for these."""
    widths = query.shape[-1], value.shape[-1]
    here = query.is_cuda and query.dtype == torch.float32 and all(64 < width <= 128 for width in widths)
    here = here and query.shape[2] >= BLOCKS["fwd_BLOCK_M"]  # measured with no fewer
    measured = not torch.version.hip and torch.__version__ >= (2, 11) and matmul_precision_name() != "highest"
    return here and measured and torch.cuda.get_device_capability(query.device) == (9, 0)


def _untraced(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    cap: float | None,
    causal: bool,
    window: int | None,
    sink: torch.Tensor | None,
) -> torch.Tensor:
    times = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(times, 1) if times > 1 else x for x in (key, value))
    keep = None
    if causal or window is not None:
        keep = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        keep = keep if window is None else keep.triu(1 - window)
    if cap is None and sink is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=keep, scale=scale)
    scores = query @ key.mT * scale
    scores = scores if cap is None else cap * torch.tanh(scores)
    scores = scores if keep is None else scores.masked_fill(~keep, float("-inf"))
    out = scores.softmax(-1) @ value
    return out if sink is None else _beside(out, scores.float().logsumexp(-1), sink)


flex_attention.reads_only = True  # type: ignore[attr-defined]  # for writes.py: it is no operation of torch's own


def obstacle(query: torch.Tensor, dropout: float, trained: bool, sink: bool = False) -> str:
    """Why FlexAttention does not run here; "" where it does."""
    if dropout:
        return "FlexAttention has no dropout"
    if query.device.type == "cpu" and trained:
        return "FlexAttention has no backward pass on a CPU"
    if query.device.type == "cpu" and sink:
        return "FlexAttention does not return the log-sum-exp of its scores on a CPU"
    if query.device.type != "cpu" and query.shape[-1] < NARROWEST:
        return f"its heads have {query.shape[-1]} elements; FlexAttention takes {NARROWEST} or more"
    return ""


def fuse_windows(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite the SDPA calls with a sliding window; how many, and why not others."""
    return each_call(graph, lambda graph, node: _rewrite(graph, node, every=False))


def fuse_calls(graph: fx.Graph) -> tuple[int, list[str]]:
    """The same for those with the causal mask or none, too."""
    return each_call(graph, lambda graph, node: _rewrite(graph, node, every=True))


def _rewrite(graph: fx.Graph, node: fx.Node, every: bool) -> str | None:
    """None where the call was rewritten; "" where it is not meant; otherwise why it was left."""
    query, key, values = (argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    tensors, options = [value(item) for item in (query, key, values)], sdpa_options(node)
    if options is None or any(t is None or t.dim() != 4 for t in tensors):
        return ""
    q, k, v = (t for t in tensors if t is not None)
    mask, scale, causal = options["attn_mask"], options["scale"], bool(options["is_causal"])
    shape, square = value(mask), q.shape[2] == k.shape[2]
    window = None
    if square and shape is not None and not causal:
        known = Mask(mask, "keep" if str(shape.dtype) == "torch.bool" else "add")
        window, causal = window_of(known, q.shape[2]), every and is_causal(known, q.shape[2])
    if window is None and not (every and (square or not causal) and (mask is None or causal)):
        return ""
    rate = number(options["dropout_p"])
    if rate is None or (scale is not None and number(scale) is None):
        return "its scale or dropout is not a plain number"
    if q.shape[0] != k.shape[0] or k.shape[:2] != v.shape[:2] or q.shape[1] % max(1, k.shape[1]):
        return "its keys or values are broadcast to its queries, or its queries to them"
    trained = any(t is not None and t.requires_grad for t in tensors)
    if reason := obstacle(q, rate, trained):
        return reason
    key, values = unrepeated(node, key, values, q) or (key, values)
    score_options = {
        "scale": float(q.shape[-1] ** -0.5 if scale is None else scale),
        "causal": causal and window is None,
        "window": window,
    }
    with graph.inserting_before(node):
        made = graph.call_function(flex_attention, (query, key, values), score_options)
    take_place(node, made, mask, dense=free_readers(node))
    return None
