"""Which nodes write into memory, and which nodes share it.

Dynamo's graph is not functional: ``x.add_(1)`` is a node like any other, so the same node may stand for
different values at two places. A rewrite that moves a read asks here whether a write lies in between.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.graph.kernel_ops import called
from rung.rewrites.graph.normalize import argument, kind, names, value

_IN_PLACE_NAMES = names("setitem delitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul")
_IN_PLACE_OPERATORS = {getattr(operator, name) for name in _IN_PLACE_NAMES}
_MODE_SWITCHES = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "_enter_inference_mode")


def switches_mode(node: fx.Node) -> bool:
    """Autocast or grad mode changes here, so operations must not move across."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _MODE_SWITCHES


def opaque(node: fx.Node) -> bool:
    """An operation that is not torch's own spelling: custom ops, Triton kernels, submodules, subgraphs."""
    if node.op == "call_module":
        return True
    if node.op != "call_function" or node.target is getattr or switches_mode(node):
        return False
    if getattr(node.target, "reads_only", False) or called(node):  # a function or a kernel of ours
        return False
    module = getattr(node.target, "__module__", None) or ""
    return kind(node) == "" and not module.startswith(("torch.nn.functional", "torch._C._nn", "torch.functional"))


def written(node: fx.Node) -> list[fx.Node]:
    """The arguments that a node may write to."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    if node.op == "call_method":
        name = str(node.target)
        writes = (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__iadd__")
        return _first(node) if writes else []
    if opaque(node):
        schema = getattr(getattr(node.target, "default", node.target), "_schema", None)
        if schema is not None and not getattr(schema, "is_mutable", True):
            return []
        # Torch's own odd functions (``torch._C._nn.gelu``) are named; anything unnamed may write anywhere.
        name = getattr(node.target, "__name__", "_")
        builtin = inspect.isbuiltin(node.target) and not name.endswith("_")
        return [] if builtin else list(node.all_input_nodes)
    found = [*_statistics(node), *_norms(node)]
    out = node.kwargs.get("out")
    found += [item for item in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(item, fx.Node)]
    name = getattr(node.target, "__name__", "")
    if (
        node.target in _IN_PLACE_OPERATORS
        or (name.endswith("_") and name not in ("and_", "or_", "not_", "is_"))
        or _inplace_flag(node)
    ):
        found += _first(node)
    return found


def _statistics(node: fx.Node) -> list[fx.Node]:
    """What a norm keeps of the batches that it trains on."""
    if kind(node) == "batch_norm":
        learns = argument(node, 5, "training", default=False)
    elif kind(node) == "instance_norm":
        learns = argument(node, 5, "use_input_stats", default=True)
    else:
        return []
    if learns is False:
        return []
    if node.target in (F.batch_norm, F.instance_norm):
        kept = [argument(node, 1, "running_mean"), argument(node, 2, "running_var")]
    else:  # torch's functions of these names take them after weight and bias
        kept = list(node.all_input_nodes[1:])
    return [item for item in kept if isinstance(item, fx.Node)]


def _norms(node: fx.Node) -> list[fx.Node]:
    """The table whose rows are brought to a norm as they are looked up."""
    bounded = kind(node) in ("embedding", "embedding_bag") and argument(node, 3, "max_norm", default=None) is not None
    table = argument(node, 1, "weight") if bounded and node.target in (F.embedding, F.embedding_bag) else None
    return [table] if isinstance(table, fx.Node) else []


def _first(node: fx.Node) -> list[fx.Node]:
    return [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else list(node.all_input_nodes)


def _inplace_flag(node: fx.Node) -> bool:
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    spot = _place_of_inplace(node.target) if inspect.isfunction(node.target) else None
    return spot is not None and len(node.args) > spot and bool(node.args[spot])


@functools.lru_cache(maxsize=1024)
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    names = list(inspect.signature(function).parameters)
    return names.index("inplace") if "inplace" in names else None


def storage(node: Any) -> int | None:
    """An identity of the memory behind a node; views of one tensor share it."""
    tensor = value(node)
    return None if tensor is None else memory(tensor)


def memory(tensor: torch.Tensor) -> int | None:
    """The same of a tensor."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors have no storage
        return None


def may_touch(node: fx.Node, storages: set[int | None]) -> bool:
    """Whether a node may write to one of these memories; unknown memory counts as touched."""
    return any(storage(item) is None or storage(item) in storages for item in written(node))


def aliases(node: fx.Node) -> list[fx.Node]:
    """All nodes of the graph that share a node's memory, itself included.

    A view is an argument's neighbour, or there is a tuple between them, so few nodes are looked at. What comes from outside may
    be one memory twice.
    """
    home = storage(node)
    if home is None:
        return [node]
    found, seen, waiting = [node], {node}, [node]
    for item in waiting:
        for other in (*item.users, *item.all_input_nodes):
            if other in seen:
                continue
            seen.add(other)
            shares = storage(other) == home
            if shares:
                found.append(other)
            if shares or isinstance(other.meta.get("example_value"), (tuple, list)):
                waiting.append(other)
    if any(item.op in ("placeholder", "get_attr") for item in found):
        return [other for other in node.graph.nodes if other is node or storage(other) == home]
    return found


def between(first: fx.Node, last: fx.Node) -> Iterable[fx.Node]:
    """The nodes strictly between two nodes, in graph order."""
    node = first.next
    while node is not last and node.op != "root":
        yield node
        node = node.next
