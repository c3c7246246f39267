"""Attention that already is one SDPA call, freed of what keeps it from the fast kernels.

A mask tensor rules out the flash kernels and makes every key head be repeated for its query heads. Where the mask is
provably the causal one (or hides nothing), SDPA is told so instead; where it then takes grouped heads, the repeat goes.
Where each head has one query (decoding), the queries of a group become the rows of one: no repeat, with or without a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.attention.grouped import repeated_from, takes_groups
from rung.rewrites.attention.masks import Mask, is_causal, is_open
from rung.rewrites.graph.constants import sweep
from rung.rewrites.graph.layout import free_readers, laid_as
from rung.rewrites.graph.normalize import argument, kind, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode


def drop_masks(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every SDPA call that can do without its mask or its repeated heads; how many, and why not others."""
    return each_call(graph, _rewrite)


def each_call(graph: fx.Graph, rewrite: Callable[[fx.Graph, fx.Node], str | None]) -> tuple[int, list[str]]:
    """Every SDPA call, handed to `rewrite`, which answers None where it was rewritten, "" where there is nothing to do and
    otherwise why it was left; how many were rewritten, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        if not node._erased and kind(node) == "scaled_dot_product_attention":
            reason = rewrite(graph, node)
            count += reason is None
            if reason:
                skipped.append(f"attention at {source_line(node)}: {reason}")
    return count, skipped


def _rewrite(graph: fx.Graph, node: fx.Node) -> str | None:
    """None where the call was rewritten; "" where there is nothing to do; otherwise why it was left."""
    query, key, values = (argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    tensors = [value(item) for item in (query, key, values)]
    options = sdpa_options(node)
    if any(t is None or t.dim() != 4 for t in tensors) or options is None:
        return ""
    q, k, v = (t for t in tensors if t is not None)
    mask, without = options["attn_mask"], False
    if isinstance(mask, fx.Node) and not options["is_causal"] and (shape := value(mask)) is not None:
        known = Mask(mask, "keep" if shape.dtype == torch.bool else "add")
        causal = q.shape[2] == k.shape[2] and is_causal(known, q.shape[2])
        without = causal or is_open(known)
        if without:
            options.update(attn_mask=None, is_causal=causal)
    sources = None if options["enable_gqa"] else unrepeated(node, key, values, q)
    masked = options["attn_mask"] is not None
    packed = sources is not None and q.shape[2] == 1 and _same_for_all(options)
    grouped = not packed and sources is not None and takes_groups(q, q.dtype, v.shape[-1], masked)
    if not without and not grouped and not packed:
        return "its mask is not provably the causal one" if isinstance(mask, fx.Node) else ""
    if grouped:
        options["enable_gqa"] = True
    if sources and (grouped or packed):
        key, values = sources
    with graph.inserting_before(node):
        if packed:
            rows = q.shape[1] // value(key).shape[1]  # type: ignore[union-attr]
            query = graph.call_method("reshape", (query, q.shape[0], -1, rows, q.shape[3]))
        made = graph.call_function(F.scaled_dot_product_attention, (query, key, values), options)
        if packed:
            made = graph.call_method("reshape", (made, *q.shape[:3], v.shape[3]))
    take_place(node, made, mask, dense=free_readers(node))
    return None


def take_place(node: fx.Node, made: fx.Node, mask: Any, dense: bool) -> None:
    """Put a node in the place of an SDPA call, and drop what only that needed. dense: a copy of it, that lies as the call's result does."""
    promised = value(node)
    if dense:
        made.meta["stack_trace"] = node.meta.get("stack_trace")
        with node.graph.inserting_before(node):
            made = (
                node.graph.call_method("contiguous", (made,))
                if promised is None
                else laid_as(node.graph, made, promised)
            )
    made.meta = dict(node.meta)
    needed = [item for item in (mask, *node.args[1:3]) if isinstance(item, fx.Node)]
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    sweep(needed)


def _same_for_all(options: dict[str, Any]) -> bool:
    """Whether all heads have one mask, which a group's rows can then share."""
    mask = options["attn_mask"]
    if options["is_causal"] or mask is None:
        return not options["is_causal"]
    shape = value(mask)
    return shape is not None and all(size == 1 for size in shape.shape[-3:-1])


_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def sdpa_options(node: fx.Node) -> dict[str, Any] | None:
    options = dict(_DEFAULTS)
    options.update(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False))
    options.update({name: item for name, item in node.kwargs.items() if name not in ("query", "key", "value")})
    return options if set(options) == set(_DEFAULTS) and len(node.args) <= 6 else None


def unrepeated(node: fx.Node, key: fx.Node, values: fx.Node, q: torch.Tensor) -> tuple[fx.Node, fx.Node] | None:
    """Key and value without their repeat, where nothing changes them in between."""
    groups = repeated_from(key, 1), repeated_from(values, 1)
    if not groups[0] or not groups[1] or groups[0][1] != groups[1][1] or groups[0][1] <= 1 or q.shape[1] % groups[0][1]:
        return None
    for repeated, (source, _) in ((key, groups[0]), (values, groups[1])):
        if any(may_touch(item, {storage(source)}) or switches_mode(item) for item in between(repeated, node)):
            return None
    return groups[0][0], groups[1][0]
