"""Values in the graph that depend on constants only, and on buffers that hold still (`rung.rewrites.graph.buffers`), worked out while
compiling: masks on the CPU, tables where they are used; and equal computations, since the mask that every layer works out for itself is one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from rung.rewrites.graph.buffers import HELD, TAKEN
from rung.rewrites.graph.normalize import kind, names, value
from rung.rewrites.graph.writes import may_touch, storage, written

# Pure, deterministic and cheap: enough for the ways in which people write a mask.
PURE = names(
    """full ones zeros arange tensor scalar_tensor full_like ones_like zeros_like new_full new_ones new_zeros
    eq ne lt le gt ge less greater less_equal greater_equal invert logical_not logical_and logical_or
    and_ or_ and or bitwise_and bitwise_or triu tril masked_fill where mul add sub div neg abs log
    getitem unsqueeze squeeze view reshape expand expand_as transpose permute mT T contiguous clone detach
    repeat repeat_interleave cat stack flip diff cumsum sum all any minimum maximum clamp remainder floor_divide
    to type type_as float half bfloat16 double bool int long"""
)

MOST_ELEMENTS = 2**28  # 16 rows of 4096 x 4096; a larger mask stays a mask


# What costs arithmetic: a compiler that works it out anew in every kernel that reads it pays for it each time.
COSTLY = names("cos sin tan pow exp exp2 expm1 log log1p log2 sqrt rsqrt tanh sigmoid erf softmax")
COMPUTED = PURE | COSTLY | names("outer square reciprocal linspace logspace")


def evaluate(node: fx.Node, allowed: frozenset[str] = PURE, *, there: bool = False) -> torch.Tensor | None:
    """The value of a node, or None where it depends on anything but constants, buffers and operations that are allowed.

    It is worked out on the CPU; with `there`, on the device on which the graph has it.
    """
    try:
        return _evaluate(node, allowed, there)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None  # not worth failing for: the mask is then passed as it is


def _evaluate(node: fx.Node, allowed: frozenset[str], there: bool) -> torch.Tensor | None:
    wanted = _ancestors(node, allowed)
    if wanted is None:
        return None
    memory = {storage(item) for item in wanted}
    held = {storage(item) for item in wanted if HELD in item.meta}
    order = [item for item in node.graph.nodes if item in wanted]
    for other in node.graph.nodes:
        # A write from outside the ancestors would be missed; one inside is repeated, in graph order, unless it is to a buffer:
        # that is the model's own, and another at every call.
        if written(other) and may_touch(other, held if other in wanted else memory):
            return None
    values: dict[fx.Node, Any] = {}
    cpu = torch.device("cpu")
    with _disable_current_modes(), torch.no_grad(), contextlib.nullcontext() if there else cpu:
        for item in order:
            if HELD in item.meta:
                item.meta[TAKEN] = True
                values[item] = item.meta[HELD] if there else item.meta[HELD].cpu()
                continue
            args, kwargs = (
                map_aggregate(part, lambda leaf: _concrete(leaf, values, there)) for part in (item.args, item.kwargs)
            )
            if "device" in kwargs and not there:
                kwargs = {**kwargs, "device": cpu}
            if item.op == "call_method":
                values[item] = getattr(args[0], str(item.target))(*args[1:], **kwargs)
            else:
                values[item] = item.target(*args, **kwargs)
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def _concrete(leaf: Any, values: dict[fx.Node, Any], there: bool) -> Any:
    if isinstance(leaf, fx.Node):
        return values[leaf]
    if there:
        return leaf
    if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf.split(":")[0] in ("cuda", "xpu", "mps")):
        return torch.device("cpu")
    return leaf


def _ancestors(node: fx.Node, allowed: frozenset[str]) -> set[fx.Node] | None:
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        item = todo.pop()
        if item in found:
            continue
        tensor = value(item)
        if (
            (kind(item) not in allowed and HELD not in item.meta)
            or tensor is None
            or tensor.numel() > MOST_ELEMENTS
            or len(found) > 200
        ):
            return None
        found.add(item)
        todo += item.all_input_nodes
    return found


def sweep(seeds: list[fx.Node]) -> None:
    """Erase nodes that a rewrite left without users.

    Not ``eliminate_dead_code``: it takes an in-place method call whose result is unused for dead.
    """
    todo = list(seeds)
    while todo:
        node = todo.pop()
        if node._erased or node.users or kind(node) not in COMPUTED or written(node):
            continue
        inputs = list(node.all_input_nodes)
        node.graph.erase_node(node)
        todo += inputs


def first_alike(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For every node that a pure computation ends in, the first of the graph that computes the same of the same inputs; nodes
    whose memory is written anywhere are left out."""
    touched = {storage(item) for node in graph.nodes for item in written(node)}
    known: dict[str, fx.Node] = {}
    firsts: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        tensor = value(node)
        if kind(node) not in COMPUTED or tensor is None:
            continue
        if touched & {storage(item) for item in (node, *node.all_input_nodes)}:
            continue
        firsts[node] = known.setdefault(f"{tensor.dtype} {_spelled(node, firsts)}", node)
    return firsts


def _spelled(node: fx.Node, known: Mapping[fx.Node, fx.Node]) -> str:
    """What a node computes, its inputs by what is known of them: equal for equal computations, where what is known is."""
    parts = map_aggregate(
        (node.args, node.kwargs), lambda leaf: f"#{known.get(leaf, leaf)}" if isinstance(leaf, fx.Node) else leaf
    )
    return f"{node.op} {node.target} {parts}"
