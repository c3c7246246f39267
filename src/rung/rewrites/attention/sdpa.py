"""Hand-written attention becomes one ``F.scaled_dot_product_attention``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.attention.canonicalize import canonicalize
from rung.rewrites.attention.flex import flex_attention, fuse_windows, obstacle
from rung.rewrites.attention.grouped import repeated_from, takes_groups
from rung.rewrites.attention.masks import as_argument, closed_rows, is_causal, is_open, window_of
from rung.rewrites.attention.normalized_copy import normalized_copy
from rung.rewrites.attention.pattern import AttentionPattern, Skip, compute_dtype, match_attention, scaling
from rung.rewrites.graph.constants import sweep
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import called, computed, in_place, kind, peel_permutations, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode

MOST_HEADS = 65535  # of a grid's second and third dimension, along which kernels lay them


def fuse_attention(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every attention found; returns how many, and why others were left."""
    return _fuse(graph, flex=False)


def fuse_flex(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite attention with capped scores, sinks or a sliding window, by hand or by SDPA; how many, and why not others."""
    by_hand, by_sdpa = _fuse(graph, flex=True), fuse_windows(graph)
    return by_hand[0] + by_sdpa[0], by_hand[1] + by_sdpa[1]


def _fuse(graph: fx.Graph, flex: bool) -> tuple[int, list[str]]:
    if not any(kind(node) == "softmax" for node in graph.nodes):
        return 0, []
    canonicalize(graph)
    count, skipped = 0, []
    for node in list(graph.nodes):
        if node._erased or kind(node) != "softmax":
            continue
        pattern = normalized = None
        done = False
        try:
            normalized = normalized_copy(node)
            pattern = match_attention(normalized.softmax if normalized else node)
            done = pattern is not None and _rewrite(graph, pattern, flex)
            count += done
        except Skip as reason:
            if not flex or (pattern is not None and pattern.beyond_sdpa):  # what it is not for, sdpa speaks of
                skipped.append(f"softmax at {source_line(node)}: {reason}")
        if normalized:
            normalized.replace_original() if done else normalized.erase()
    return count, skipped


@dataclass(frozen=True)
class _Attention:
    """One attention as a single call computes it. B is the batch, H the query's heads, T its length, S the keys' length, D and E the widths of
    keys and values."""

    query: fx.Node  # before its scale is applied
    key: fx.Node  # before it is scaled, permuted, and repeated for groups of query heads
    value: fx.Node
    key_order: list[int]  # its dimensions as the call takes them
    value_order: list[int]
    rank: int  # 3 where there is no batch dimension
    scores: tuple[int, ...]  # [B, H, T, S]
    output: tuple[int, ...]  # [B, H, T, E]
    dtype: torch.dtype  # of query, key and value in the call
    scale: float
    causal: bool
    window: int | None  # keys that a row sees
    single: bool  # one head of keys and values serves all query heads
    grouped: bool = False  # the call is given fewer heads of keys and values than of queries
    trained: bool = False  # gradients flow to one of its inputs


def _shape(node: fx.Node, rank: int) -> tuple[int, ...]:
    """As four dimensions: the one in front of [heads, length, width] is a batch of 1."""
    tensor = value(node)
    if tensor is None or tensor.dim() != rank:
        raise Skip("query, key and value are not all [batch, heads, length, width] of fixed size")
    if tensor.shape[-3] > MOST_HEADS:
        raise Skip(f"more than {MOST_HEADS} heads in one dimension")
    return (*(1,) * (4 - rank), *tensor.shape)


def _rewrite(graph: fx.Graph, pattern: AttentionPattern, flex: bool) -> bool:
    """Whether it is rewritten; what scaled_dot_product_attention can do is left to it where flex is asked for."""
    attention = _read(pattern, flex)
    if flex and not pattern.beyond_sdpa and attention.window is None:
        return False
    attention = _with_chosen_heads(pattern, attention, flex)
    _refuse_writes(pattern, _reads(pattern, attention))
    before = pattern.output.prev
    with graph.inserting_before(pattern.output):
        fused = _call(graph, pattern, attention, flex)
        fused = _as_by_hand(graph, pattern, attention, fused)
    for node in between(before, pattern.output):
        node.meta["stack_trace"] = pattern.output.meta.get("stack_trace")
    _replace(graph, pattern, fused)
    return True


def _read(pattern: AttentionPattern, flex: bool) -> _Attention:
    """What a pattern computes, in the terms of one call. Raises Skip where none computes it."""
    if pattern.cap is not None and not flex:
        raise Skip("the scores are capped (`tanh`), which scaled_dot_product_attention cannot do")
    if pattern.sink is not None and not flex:
        raise Skip("each row has a score without a key (a sink), which scaled_dot_product_attention cannot do")
    dtype = compute_dtype(pattern)
    rank = len(tensor.shape) if (tensor := value(pattern.scores)) is not None else 0
    query, key_t, values = _shape(pattern.query, rank), _shape(pattern.key, rank), _shape(pattern.value, rank)
    scores, output = _shape(pattern.scores, rank), _shape(pattern.output, rank)
    # One key head for all query heads: the matmul broadcasts it.
    single = key_t[1] == values[1] == 1 < query[1]
    heads = [shape[:1] if single else shape[:2] for shape in (query, key_t, values)]
    if not heads[0] == heads[1] == heads[2] or key_t[3] != values[2] or query[3] != key_t[2]:
        raise Skip("query, key and value have different batch or head counts")
    if tuple(output) != (*query[:3], values[3]):
        raise RuntimeError("the rewritten attention would have another shape")

    q, q_scale = _unscaled(pattern.query)
    k_t, k_scale = _unscaled(pattern.key)
    scale = pattern.scale * q_scale * k_scale
    if not scale > 0:
        raise Skip("the scale is not positive")
    k, k_order = peel_permutations(k_t)
    k_order = [*k_order[:-2], k_order[-1], k_order[-2]]
    v, v_order = peel_permutations(pattern.value)
    pattern.masks = [mask for mask in pattern.masks if not is_open(mask)]
    square = len(pattern.masks) == 1 and scores[2] == scores[3]
    causal = square and is_causal(pattern.masks[0], scores[2])
    window = window_of(pattern.masks[0], scores[2]) if flex and square else None
    return _Attention(q, k, v, k_order, v_order, rank, scores, output, dtype, scale, causal, window, single)


def _with_chosen_heads(pattern: AttentionPattern, attention: _Attention, flex: bool) -> _Attention:
    """With keys and values before they are repeated for groups of query heads, where the call takes those. Raises Skip where flex cannot do it."""
    q, k, v = attention.query, attention.key, attention.value
    if flex and pattern.masks and not attention.causal and attention.window is None:
        raise Skip("its mask is neither the causal one nor a sliding window")
    k_group, v_group = repeated_from(k, attention.key_order[1]), repeated_from(v, attention.value_order[1])
    tensor = value(q)
    tensors = map(value, (q, k, v, *(mask.node for mask in pattern.masks)))
    trained = any(item is not None and item.requires_grad for item in tensors)
    sink = pattern.sink is not None
    if flex and tensor is not None and (reason := obstacle(tensor, pattern.dropout, trained, sink)):
        raise Skip(reason)
    masked = bool(pattern.masks) and not attention.causal
    grouped = flex or (tensor is not None and takes_groups(tensor, attention.dtype, attention.output[3], masked))
    if grouped and not attention.single:
        heads = attention.scores[1]
        grouped = bool(k_group and v_group and k_group[1] == v_group[1] > 1 and heads % k_group[1] == 0)
        if grouped and k_group and v_group:
            k, v = k_group[0], v_group[0]
    return replace(attention, key=k, value=v, grouped=grouped, trained=trained)


def _reads(pattern: AttentionPattern, attention: _Attention) -> list[tuple[fx.Node, fx.Node, fx.Node]]:
    """What the form by hand used, the node behind it that is read now, and who used it."""
    reads = [
        (pattern.query, attention.query, pattern.scores),
        (pattern.key, attention.key, pattern.scores),
        (pattern.value, attention.value, pattern.output),
    ]
    for node in (mask.node for mask in pattern.masks):
        reads.append((node, node, next(user for user in reversed(pattern.inner) if user in node.users)))
    if pattern.sink is not None:
        joined = next(node for node in pattern.inner if node in pattern.sink.users)
        reads.append((pattern.sink, pattern.sink, joined))
    return reads


def _call(graph: fx.Graph, pattern: AttentionPattern, attention: _Attention, flex: bool) -> fx.Node:
    """The call, with four dimensions, in its own dtype."""
    dtype, scale, causal = attention.dtype, attention.scale, attention.causal
    q = _ready(graph, attention.query, None, dtype)
    k = _ready(graph, attention.key, attention.key_order, dtype)
    v = _ready(graph, attention.value, attention.value_order, dtype)
    if attention.rank == 3:
        q, k, v = (called(graph, "unsqueeze", item, 0) for item in (q, k, v))
    if attention.single and not attention.grouped:
        k, v = (called(graph, "expand", item, -1, attention.scores[1], -1, -1) for item in (k, v))
    if flex:
        score = {"scale": scale, "cap": pattern.cap, "causal": causal, "window": attention.window, "sink": pattern.sink}
        return graph.call_function(flex_attention, (q, k, v), score)
    options: dict[str, Any] = {"dropout_p": pattern.dropout, "is_causal": causal, "scale": scale}
    if pattern.masks and not causal:
        mask = as_argument(graph, pattern.masks, dtype, attention.scores)
        summed = any(mask.form in ("add", "sub") for mask in pattern.masks)  # which tells filled keys apart
        if (attention.trained or summed) and (closed := closed_rows(graph, pattern.masks)) is not None:
            q, mask = (computed(graph, torch.masked_fill, item, closed, 0.0) for item in (q, mask))
        options["attn_mask"] = mask
    if attention.grouped:
        options["enable_gqa"] = True
    return graph.call_function(F.scaled_dot_product_attention, (q, k, v), options)


def _as_by_hand(graph: fx.Graph, pattern: AttentionPattern, attention: _Attention, fused: fx.Node) -> fx.Node:
    """The call's output with the rank, dtype and layout of the second matmul's."""
    if attention.rank == 3:
        fused = graph.call_method("squeeze", (fused, 0))
    output = value(pattern.output)
    if output is not None and output.dtype != attention.dtype:
        fused = graph.call_method("to", (fused, output.dtype))
    # The kernels return the heads transposed, where a matmul returns them dense.
    if free_readers(pattern.output):
        fused = graph.call_method("contiguous", (fused,))
    return fused


def _replace(graph: fx.Graph, pattern: AttentionPattern, fused: fx.Node) -> None:
    fused.meta = dict(pattern.output.meta)
    pattern.output.replace_all_uses_with(fused)
    dead = (pattern.output, *pattern.inner, pattern.scores)
    read = [item for node in dead for item in node.all_input_nodes]
    for node in dead:
        graph.erase_node(node)
    sweep(read)


def _refuse_writes(pattern: AttentionPattern, reads: list[tuple[fx.Node, fx.Node, fx.Node]]) -> None:
    """All is read at the second matmul now: nothing on the way may change what is read, or how it runs."""
    if any(switches_mode(node) for node in between(pattern.scores, pattern.output)):
        raise Skip("autocast or grad mode changes inside the attention")
    own = {pattern.scores, pattern.output, *pattern.inner}
    for used, source, reader in reads:
        first = [reader, *_path(used, source)][-1]  # the earliest node that read the source
        for node in between(first, pattern.output) if first is not pattern.output else ():
            if node not in own and may_touch(node, {storage(source)}):
                raise Skip("a tensor is written in place inside the attention")


def _path(used: fx.Node, source: fx.Node) -> list[fx.Node]:
    """The folded nodes from ``used`` up to ``source``, which is not among them."""
    path = []
    while used is not source:
        path.append(used)
        inputs = used.all_input_nodes
        if not inputs:
            raise RuntimeError("a folded node does not lead to its source")
        used = step[0] if (step := scaling(used)) else inputs[0]
    return path


def _unscaled(node: fx.Node) -> tuple[fx.Node, float]:
    """Take a scalar factor off q or k: it belongs to the scale."""
    step = scaling(node)
    if step is None or in_place(node):
        return node, 1.0
    source, factor = step
    before, after = value(source), value(node)
    if before is None or after is None or before.dtype != after.dtype or before.shape != after.shape:
        return node, 1.0
    return source, factor


def _ready(graph: fx.Graph, node: fx.Node, order: list[int] | None, dtype: torch.dtype) -> fx.Node:
    if order is not None and order != list(range(len(order))):
        two = [d for d in range(len(order)) if order[d] != d]
        node = called(graph, "transpose", node, *two) if len(two) == 2 else called(graph, "permute", node, *order)
    tensor = value(node)
    return node if tensor is not None and tensor.dtype == dtype else called(graph, "to", node, dtype)
