"""`nn.MultiheadAttention` as the operations that it is made of: Dynamo leaves torch's function as one node.

All rewrites and the counts read these: its projections are linear layers, its attention is SDPA or, where weights are
asked for, a softmax between two products. Nothing else is computed: AOTAutograd looks inside that function, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.node import map_aggregate, map_arg
from torch.overrides import TorchFunctionMode

from rung.rewrites.graph.captured import without_numbers
from rung.rewrites.graph.normalize import source_line, value
from rung.rewrites.graph.writes import memory

# What is one operator in evaluation without gradients when it leaves Dynamo. Attention alone is one with torch 2.6 only.
FAST_PATHS = {torch._transformer_encoder_layer_fwd: "layer", torch._native_multi_head_attention: "attention"}


def write_out(graph: fx.Graph) -> tuple[int, list[str]]:
    """Put in the place of every such node what it computes, which rewrites nothing; and what stays closed, and why."""
    for node in graph.find_nodes(op="call_function", target=F.multi_head_attention_forward):
        _replace(node, *_computed(node))
    reason = "torch's fast path in evaluation is one operator, which this pass leaves alone"
    closed = [node for target in FAST_PATHS for node in graph.find_nodes(op="call_function", target=target)]
    return 0, [f"{FAST_PATHS[node.target]} at {source_line(node)}: {reason}" for node in closed]


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any


class _Calls(TorchFunctionMode):
    """Notes torch's functions that are called and give tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(part, torch.Tensor) for part in (result if isinstance(result, (tuple, list)) else [result])):
            self.made.append(_Call(func, args, kwargs or {}, result))
        return result


def _computed(node: fx.Node) -> tuple[list[_Call], Any]:
    """The calls inside and the results, under the modes under which Dynamo found its own."""
    args, kwargs = map_arg((node.args, node.kwargs), _known)
    known = node.meta["example_value"]
    with ExitStack() as modes:
        for told in _autocasts(node):
            modes.enter_context(torch.autocast(*told))
        modes.enter_context(torch.set_grad_enabled(known[0].requires_grad))
        modes.enter_context(without_numbers(known[0]))
        calls = modes.enter_context(_Calls())
        results = _body()(*args, **kwargs)
    for one, other in zip(results, known, strict=True):
        if one is not None and (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
            raise TypeError(f"its result would be {one.dtype} {list(one.shape)}, not {other.dtype} {list(other.shape)}")
    return calls.made, results


def _known(node: fx.Node) -> torch.Tensor:
    if (tensor := value(node)) is None:
        raise TypeError("the graph has dynamic sizes")
    return tensor


def _autocasts(node: fx.Node) -> list[tuple[Any, ...]]:
    """What autocast was told in this graph and is in effect at a node."""
    entered: dict[Any, tuple[Any, ...]] = {}
    for earlier in node.graph.nodes:
        if earlier is node:
            break
        name = getattr(earlier.target, "__name__", "")
        if name == "_enter_autocast":
            entered[earlier] = earlier.args
        elif name == "_exit_autocast":
            entered.pop(earlier.args[0], None)
    return list(entered.values())


def _body() -> Callable[..., Any]:
    """Torch's function without its first question, whether someone else handles the call: the calls inside are wanted."""
    whole = F.multi_head_attention_forward
    return FunctionType(whole.__code__, {**vars(F), "has_torch_function": lambda _: False}, argdefs=whole.__defaults__)


def _replace(node: fx.Node, calls: list[_Call], results: Any) -> None:
    graph, made = node.graph, []
    nodes = {id(value(item)): item for item in node.all_input_nodes}
    known = node.meta["example_value"]
    homes = {home: like for one, like in zip(results, known, strict=True) if (home := one is not None and memory(one))}

    def taken(leaf: Any) -> Any:
        return nodes[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf

    def note(item: fx.Node, result: Any) -> None:
        item.meta = {**node.meta, "example_value": _at_home(result, homes)}
        nodes[id(result)] = item
        made.append(item)

    with graph.inserting_before(node):
        for call in calls:
            item = _written(graph, call.function, map_aggregate(call.args, taken), map_aggregate(call.kwargs, taken))
            note(item, call.result)
            for spot, part in enumerate(call.result if isinstance(call.result, (tuple, list)) else ()):
                note(graph.call_function(operator.getitem, (item, spot)), part)
    for user in list(node.users):
        user.replace_all_uses_with(nodes[id(results[user.args[1]])])
        graph.erase_node(user)
    for item in (node, *reversed(made)):
        if not item.users:
            graph.erase_node(item)


def _at_home(result: Any, homes: dict[int, torch.Tensor]) -> Any:
    """What lies in a result's memory, in that of the result which the nodes after it are known to share."""
    home = homes.get(memory(result) or 0) if isinstance(result, torch.Tensor) else None
    if home is None:
        return result
    same = home.detach().as_strided(result.shape, result.stride(), result.storage_offset())
    return same.requires_grad_(result.requires_grad)


def _written(graph: fx.Graph, function: Any, args: Any, kwargs: Any) -> fx.Node:
    """A call as Dynamo writes it: methods by name."""
    name = function.__name__
    if name == "__getitem__":
        return graph.call_function(operator.getitem, args, kwargs)
    if getattr(torch.Tensor, name, None) is function:
        return graph.call_method(name, args, kwargs)
    return graph.call_function(function, args, kwargs)
