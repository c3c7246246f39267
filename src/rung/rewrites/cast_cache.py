"""Weights that autocast would cast in every call are kept as it casts them.

Under autocast a float32 weight is read, and its copy in 16 bits written, before each product that reads the copy: eight bytes an
element in the place of two, most of what a step moves where few tokens are multiplied. In inference the copy of the call before is as good
(`weight_cache.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from rung.rewrites.graph.captured import without_numbers
from rung.rewrites.graph.normalize import kind, permutation, source_line, value
from rung.rewrites.graph.writes import storage, written
from rung.rewrites.packed_weights import MEMBERS, PLACEMENT, Placement
from rung.rewrites.weight_cache import add_cached, replay_views

PRODUCTS = ("linear", "matmul", "addmm", "conv1d", "conv2d", "conv3d")
NARROW = (torch.bfloat16, torch.float16)


def cache_casts(graph: fx.Graph) -> tuple[int, list[str]]:
    """Gives every product under autocast an input that holds its weight, and its bias, as autocast casts them; how many, and
    why not others."""
    if torch.is_grad_enabled():  # autograd holds what it read to the backward pass: no other value may be written there
        return 0, []
    inputs = {node.name: node for node in graph.find_nodes(op="placeholder")}
    touched = {storage(item) for node in graph.nodes for item in written(node)}
    cached: dict[tuple[str, torch.dtype], fx.Node] = {}
    count, skipped = 0, []
    for node in list(graph.nodes):
        result = value(node)
        if kind(node) not in PRODUCTS or result is None or result.dtype not in NARROW:
            continue
        for read in node.all_input_nodes:
            turned = permutation(read)
            weight = turned[0] if turned else read
            wide = value(weight)
            if wide is None or wide.dtype != torch.float32 or not {PLACEMENT, MEMBERS} & set(weight.meta):
                continue
            members = [inputs[name] for name in weight.meta.get(MEMBERS, (weight.name,))]
            if reason := _obstacle(members, touched):
                skipped.append(f"weight of {source_line(node)}: {reason}")
                continue
            key = weight.name, result.dtype
            if key not in cached:
                cached[key] = _cached(graph, weight, members, result.dtype)
            node.replace_input_with(read, replay_views(graph, [read] if turned else [], cached[key]))
            count += 1
    for node in inputs.values():
        if MEMBERS in node.meta and not node.users:
            graph.erase_node(node)  # its copy is made of the members, which then need not lie together
    return count, skipped


def _obstacle(members: Sequence[fx.Node], touched: set[int | None]) -> str:
    placements: list[Placement] = [node.meta[PLACEMENT] for node in members]
    if not all(placement.parameter for placement in placements):
        return "it is not a parameter with a version counter"
    apart = all(placement.fills_storage and not placement.shared for placement in placements)
    if not apart or any(node.meta["example_value"].dim() == 0 for node in members):
        return "it shares its memory with another tensor, or is a single number"
    if touched & {storage(node) for node in members}:
        return "the step itself may write to it"
    return ""


def _cached(graph: fx.Graph, weight: fx.Node, members: Sequence[fx.Node], dtype: torch.dtype) -> fx.Node:
    wide = value(weight)
    assert wide is not None
    with without_numbers(wide), torch.no_grad():
        example = wide.detach().to(dtype)
    return add_cached(graph, example, members, Cast(dtype))


@dataclass(frozen=True)
class Cast:
    """Tensors below one another, in another dtype."""

    dtype: torch.dtype

    @property
    def key(self) -> Hashable:
        return (self.dtype,)

    def new(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(tensors) == 1:  # whose strides stay
            return tensors[0].detach().to(self.dtype, copy=True)
        return torch.cat([t.detach().to(self.dtype) for t in tensors])

    def write(self, made: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        for part, tensor in zip(made.split([len(t) for t in tensors]), tensors, strict=True):
            part.copy_(tensor.detach())
