"""SDPA calls by FlexAttention: those with a sliding window, whose hidden keys SDPA computes, or all that it can do."""

from __future__ import annotations

from torch import fx

from rung.rewrites.attention.flex import flex_attention, obstacle
from rung.rewrites.attention.mask_free import each_call, sdpa_options, take_place, unrepeated
from rung.rewrites.attention.masks import Mask, is_causal, window_of
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, number, value


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
    rate, result = number(options["dropout_p"]), value(node)
    if rate is None or (scale is not None and number(scale) is None):
        return "its scale or dropout is not a plain number"
    if q.shape[0] != k.shape[0] or k.shape[:2] != v.shape[:2] or q.shape[1] % max(1, k.shape[1]):
        return "its keys or values are broadcast to its queries, or its queries to them"
    trained = any(t is not None and t.requires_grad for t in tensors)
    if reason := obstacle(q, rate, trained):
        return reason
    copied = free_readers(node)
    if copied and (result is None or not result.is_contiguous()):
        return "its result leaves the graph in a layout of its own"
    key, values = unrepeated(node, key, values, q) or (key, values)
    told = {
        "scale": float(q.shape[-1] ** -0.5 if scale is None else scale),
        "causal": causal and window is None,
        "window": window,
    }
    with graph.inserting_before(node):
        made = graph.call_function(flex_attention, (query, key, values), told)
    take_place(node, made, mask, dense=copied)
    return None
