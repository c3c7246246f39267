"""Attention that already is one SDPA call, freed of what keeps it from the fast kernels.

A mask tensor rules out the flash kernels and makes every key head be repeated for its query heads. Where the mask is
provably the causal one (or hides nothing), SDPA is told so instead; where it then takes grouped heads, the repeat goes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.ladder.surgery.constants import sweep
from rung.ladder.surgery.grouped import repeated_from, takes_groups
from rung.ladder.surgery.masks import Mask, is_causal, is_open
from rung.ladder.surgery.normalize import argument, kind, source_line, value
from rung.ladder.surgery.writes import between, may_touch, storage, switches_mode


def lean_attention(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every SDPA call that can do without its mask or its repeated heads; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        if not node._erased and kind(node) == "scaled_dot_product_attention":
            reason = _rewrite(graph, node)
            count += reason is None
            if reason:
                skipped.append(f"attention at {source_line(node)}: {reason}")
    return count, skipped


def _rewrite(graph: fx.Graph, node: fx.Node) -> str | None:
    """None where the call was rewritten; "" where there is nothing to do; otherwise why it was left."""
    query, key, values = (argument(node, k, name) for k, name in enumerate(("query", "key", "value")))
    tensors = [value(item) for item in (query, key, values)]
    options = _options(node)
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
    grouped = _grouped(node, key, values, q, v, options)
    if grouped:
        options["enable_gqa"] = True
    if not without and not grouped:
        return "its mask is not provably the causal one" if isinstance(mask, fx.Node) else ""
    with graph.inserting_before(node):
        lean = graph.call_function(F.scaled_dot_product_attention, (query, *(grouped or (key, values))), options)
    lean.meta = dict(node.meta)
    node.replace_all_uses_with(lean)
    graph.erase_node(node)
    sweep([item for item in (mask, key, values) if isinstance(item, fx.Node)])
    return None


_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def _options(node: fx.Node) -> dict[str, Any] | None:
    found = dict(_DEFAULTS)
    found.update(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False))
    found.update({name: item for name, item in node.kwargs.items() if name not in ("query", "key", "value")})
    return found if set(found) == set(_DEFAULTS) and len(node.args) <= 6 else None


def _grouped(
    node: fx.Node, key: fx.Node, values: fx.Node, q: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
) -> tuple[fx.Node, fx.Node] | None:
    """Key and value without their repeat, where SDPA takes them so and nothing changes them in between."""
    if options["enable_gqa"] or not takes_groups(q, q.dtype, v.shape[-1], options["attn_mask"] is not None):
        return None
    found = repeated_from(key, 1), repeated_from(values, 1)
    if not found[0] or not found[1] or found[0][1] != found[1][1] or found[0][1] <= 1 or q.shape[1] % found[0][1]:
        return None
    for repeated, (source, _) in ((key, found[0]), (values, found[1])):
        if any(may_touch(item, {storage(source)}) or switches_mode(item) for item in between(repeated, node)):
            return None
    return found[0][0], found[1][0]
