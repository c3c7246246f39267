"""Hand-written attention becomes one ``F.scaled_dot_product_attention``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.attention.chain import Chain, Skip, compute_dtype, read_chain, scaling
from rung.rewrites.attention.flex import flex_attention, fuse_windows, obstacle
from rung.rewrites.attention.grouped import repeated_from, takes_groups
from rung.rewrites.attention.masks import as_argument, closed_rows, is_causal, is_open, window_of
from rung.rewrites.attention.plain import plain_copy
from rung.rewrites.attention.spellings import respell
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
    respell(graph)
    count, skipped = 0, []
    for node in list(graph.nodes):
        if node._erased or kind(node) != "softmax":
            continue
        chain = plain = None
        done = False
        try:
            plain = plain_copy(node)
            chain = read_chain(plain.softmax if plain else node)
            done = chain is not None and _rewrite(graph, chain, flex)
            count += done
        except Skip as reason:
            if not flex or (chain is not None and chain.beyond_sdpa):  # what it is not for, sdpa speaks of
                skipped.append(f"softmax at {source_line(node)}: {reason}")
        if plain:
            plain.take_place() if done else plain.drop()
    return count, skipped


def _shape(node: fx.Node, rank: int) -> tuple[int, ...]:
    """As four dimensions: the one in front of [heads, length, width] is a batch of 1."""
    tensor = value(node)
    if tensor is None or tensor.dim() != rank:
        raise Skip("query, key and value are not all [batch, heads, length, width] of fixed size")
    if tensor.shape[-3] > MOST_HEADS:
        raise Skip(f"more than {MOST_HEADS} heads in one dimension")
    return (*(1,) * (4 - rank), *tensor.shape)


def _rewrite(graph: fx.Graph, chain: Chain, flex: bool) -> bool:
    """Whether it is rewritten; what scaled_dot_product_attention can do is left to it where flex is asked for."""
    if chain.cap is not None and not flex:
        raise Skip("the scores are capped (`tanh`), which scaled_dot_product_attention cannot do")
    if chain.sink is not None and not flex:
        raise Skip("each row has a score without a key (a sink), which scaled_dot_product_attention cannot do")
    dtype = compute_dtype(chain)
    rank = len(tensor.shape) if (tensor := value(chain.scores)) is not None else 0
    query, key_t, values = _shape(chain.query, rank), _shape(chain.key, rank), _shape(chain.value, rank)
    scores, output = _shape(chain.scores, rank), _shape(chain.output, rank)
    # One key head for all query heads: the matmul broadcasts it.
    single = key_t[1] == values[1] == 1 < query[1]
    heads = [shape[:1] if single else shape[:2] for shape in (query, key_t, values)]
    if not heads[0] == heads[1] == heads[2] or key_t[3] != values[2] or query[3] != key_t[2]:
        raise Skip("query, key and value have different batch or head counts")

    q, q_scale = _unscaled(chain.query)
    k_t, k_scale = _unscaled(chain.key)
    scale = chain.scale * q_scale * k_scale
    if not scale > 0:
        raise Skip("the scale is not positive")
    k, k_order = peel_permutations(k_t)
    k_order = [*k_order[:-2], k_order[-1], k_order[-2]]
    v, v_order = peel_permutations(chain.value)
    chain.masks = [mask for mask in chain.masks if not is_open(mask)]
    square = len(chain.masks) == 1 and scores[2] == scores[3]
    causal = square and is_causal(chain.masks[0], scores[2])
    window = window_of(chain.masks[0], scores[2]) if flex and square else None
    if flex and not chain.beyond_sdpa and window is None:
        return False
    if flex and chain.masks and not causal and window is None:
        raise Skip("its mask is neither the causal one nor a sliding window")

    k_group, v_group = repeated_from(k, k_order[1]), repeated_from(v, v_order[1])
    tensor = value(q)
    tensors = map(value, (q, k, v, *(mask.node for mask in chain.masks)))
    trained = any(item is not None and item.requires_grad for item in tensors)
    if flex and tensor is not None and (reason := obstacle(tensor, chain.dropout, trained, chain.sink is not None)):
        raise Skip(reason)
    grouped = flex or (tensor is not None and takes_groups(tensor, dtype, values[3], bool(chain.masks) and not causal))
    if grouped and not single:
        grouped = bool(k_group and v_group and k_group[1] == v_group[1] > 1 and query[1] % k_group[1] == 0)
        if grouped and k_group and v_group:
            k, v = k_group[0], v_group[0]

    masks = [mask.node for mask in chain.masks]
    reads = [(chain.query, q, chain.scores), (chain.key, k, chain.scores), (chain.value, v, chain.output)]
    reads += [(node, node, next(user for user in reversed(chain.inner) if user in node.users)) for node in masks]
    if chain.sink is not None:
        joined = next(node for node in chain.inner if node in chain.sink.users)
        reads.append((chain.sink, chain.sink, joined))
    _refuse_writes(chain, reads)
    before = chain.output.prev
    with graph.inserting_before(chain.output):
        q, k, v = (
            _ready(graph, q, None, dtype),
            _ready(graph, k, k_order, dtype),
            _ready(graph, v, v_order, dtype),
        )
        if rank == 3:
            q, k, v = (called(graph, "unsqueeze", item, 0) for item in (q, k, v))
        if single and not grouped:
            k, v = (called(graph, "expand", item, -1, query[1], -1, -1) for item in (k, v))
        if flex:
            told = {"scale": scale, "cap": chain.cap, "causal": causal, "window": window, "sink": chain.sink}
            fused = graph.call_function(flex_attention, (q, k, v), told)
        else:
            options: dict[str, Any] = {"dropout_p": chain.dropout, "is_causal": causal, "scale": scale}
            if chain.masks and not causal:
                laid = as_argument(graph, chain.masks, dtype, scores)
                summed = any(mask.form in ("add", "sub") for mask in chain.masks)  # which tells filled keys apart
                if (trained or summed) and (closed := closed_rows(graph, chain.masks)) is not None:
                    q, laid = (computed(graph, torch.masked_fill, item, closed, 0.0) for item in (q, laid))
                options["attn_mask"] = laid
            if grouped:
                options["enable_gqa"] = True
            fused = graph.call_function(F.scaled_dot_product_attention, (q, k, v), options)
        if rank == 3:
            fused = graph.call_method("squeeze", (fused, 0))
        out_value = value(chain.output)
        if out_value is not None and out_value.dtype != dtype:
            fused = graph.call_method("to", (fused, out_value.dtype))
        if tuple(output) != (*query[:3], values[3]):
            raise RuntimeError("the rewritten attention would have another shape")
        # The kernels return the heads transposed, where a matmul returns them dense.
        if free_readers(chain.output):
            fused = graph.call_method("contiguous", (fused,))
    for node in between(before, chain.output):
        node.meta["stack_trace"] = chain.output.meta.get("stack_trace")
    fused.meta = dict(chain.output.meta)
    chain.output.replace_all_uses_with(fused)
    dead = (chain.output, *chain.inner, chain.scores)
    read = [item for node in dead for item in node.all_input_nodes]
    for node in dead:
        graph.erase_node(node)
    sweep(read)
    return True


def _refuse_writes(chain: Chain, reads: list[tuple[fx.Node, fx.Node, fx.Node]]) -> None:
    """All is read at the second matmul now: nothing on the way may change what is read, or how it runs.

    ``reads`` holds what the hand-written form used, the node behind it that is read now, and who used it.
    """
    if any(switches_mode(node) for node in between(chain.scores, chain.output)):
        raise Skip("autocast or grad mode changes inside the attention")
    own = {chain.scores, chain.output, *chain.inner}
    for used, source, reader in reads:
        first = [reader, *_path(used, source)][-1]  # the earliest node that read the source
        for node in between(first, chain.output) if first is not chain.output else ():
            if node not in own and may_touch(node, {storage(source)}):
                raise Skip("a tensor is written in place inside the attention")


def _path(used: fx.Node, source: fx.Node) -> list[fx.Node]:
    """The folded nodes from ``used`` up to ``source``, which is not among them."""
    found = []
    while used is not source:
        found.append(used)
        inputs = used.all_input_nodes
        if not inputs:
            raise RuntimeError("a folded node does not lead to its source")
        used = step[0] if (step := scaling(used)) else inputs[0]
    return found


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
