"""One operation behind its spellings: ``torch.matmul(a, b)``, ``a @ b`` and ``a.matmul(b)`` are "matmul"."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.hardware.torch_versions import transposing_property

_NAMESPACES = (torch, F, torch.Tensor, operator)

_ALIASES = {
    "__matmul__": "matmul",
    "bmm": "matmul",
    "multiply": "mul",
    "imul": "mul",
    "__mul__": "mul",
    "__rmul__": "mul",
    "truediv": "div",
    "itruediv": "div",
    "true_divide": "div",
    "divide": "div",
    "__truediv__": "div",
    "iadd": "add",
    "__add__": "add",
    "__radd__": "add",
    "isub": "sub",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "inv": "invert",
    "bitwise_not": "invert",
    "__getitem__": "getitem",
    # Dynamo writes comparisons as operators or, before torch 2.13, as these methods.
    **{f"__{name}__": name for name in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "invert", "neg", "sub")},
}


def names(text: str) -> frozenset[str]:
    """A set of words."""
    return frozenset(text.split())


ELEMENTWISE = names(
    """silu gelu relu relu6 leaky_relu elu selu mish sigmoid tanh softplus hardswish hardsigmoid logsigmoid
    dropout mul add sub div pow abs neg exp clamp square erf clone contiguous
    to type type_as float half bfloat16"""
)


def kind(node: Any) -> str:
    """The canonical name of a node's operation; "" for anything that is not a known torch spelling."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_method":
        return _canonical(str(node.target))
    if node.op != "call_function":
        return ""
    if node.target is getattr:
        name = node.args[1]
        return name if isinstance(name, str) and name in ("T", "mT") else ""
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return transposing_property(node.target)
    if spelled := getattr(node.target, "spells", ""):  # a function of ours with the signature of torch's
        return str(spelled)
    name = getattr(node.target, "__name__", "")
    # A custom op may be called "softmax" too: only torch's own function of that name counts.
    if name and any(getattr(space, name, None) is node.target for space in _NAMESPACES):
        return _canonical(name)
    return ""


def _canonical(name: str) -> str:
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]  # the in-place form computes the same value; writes.py watches the writing
    return _ALIASES.get(name, name)


def in_place(node: fx.Node) -> bool:
    """The node's own spelling writes to its first argument: ``x.mul_(2)``, ``x *= 2``."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op == "call_function" and name in ("iadd", "isub", "imul", "itruediv"):
        return True
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_", "not_")


def argument(node: fx.Node, position: int, *names: str, default: Any = None) -> Any:
    """An argument by position (the tensor itself is 0) or by any of its names."""
    if len(node.args) > position:
        return node.args[position]
    for name in names:
        if name in node.kwargs:
            return node.kwargs[name]
    return default


def per_dimension(dimensions: int, given: Any) -> tuple[Any, ...]:
    """An argument of a convolution, such as its stride, for each of its dimensions."""
    several = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return several * dimensions if len(several) == 1 else several


def value(node: Any) -> torch.Tensor | None:
    """The fake tensor that Dynamo computed for a node, when its shape holds plain integers only."""
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if isinstance(found, torch.Tensor) and all(isinstance(size, int) for size in found.shape):
        return found
    return None


def number(item: Any) -> float | None:
    """A Python number that is not a bool."""
    return float(item) if isinstance(item, (int, float)) and not isinstance(item, bool) else None


def scaled(node: Any) -> tuple[fx.Node, float] | None:
    """(x, factor) where the node is x times or over a Python number."""
    what = kind(node)
    if what not in ("mul", "div") or set(node.kwargs) - {"input", "other"}:
        return None
    left, right = argument(node, 0, "input"), argument(node, 1, "other")
    if what == "mul" and isinstance(right, fx.Node):
        left, right = right, left
    by = number(right)
    if not isinstance(left, fx.Node) or by is None or (what == "div" and by == 0):
        return None
    return left, by if what == "mul" else 1.0 / by


CASTS = ("to", "type", "type_as", "float", "half", "bfloat16", "double")


def cast_source(node: Any) -> fx.Node | None:
    """x where the node is x in a floating dtype on the same device, and nothing else."""
    if kind(node) not in CASTS or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    before, after = value(source), value(node)
    if before is None or after is None or before.device != after.device:
        return None
    both_float = before.dtype.is_floating_point and after.dtype.is_floating_point
    return source if both_float else None


def permutation(node: fx.Node) -> tuple[fx.Node, list[int]] | None:
    """(x, order) where the node is ``x.permute(order)`` in one of its spellings."""
    result = value(node)
    what = kind(node)
    if result is None or in_place(node) or what not in ("transpose", "permute", "mT", "T", "t"):
        return None
    rank = result.dim()
    source = argument(node, 0, "input", "self")
    order = list(range(rank))
    if what == "permute":
        dims = argument(node, 1, "dims")
        dims = dims if isinstance(dims, (tuple, list)) else node.args[1:]
        order = [int(d) % rank for d in dims]
    elif what in ("T", "t"):
        order.reverse()
    else:
        first, second = -2, -1
        if what == "transpose":
            first = argument(node, 1, "dim0", "axis0")
            second = argument(node, 2, "dim1", "axis1")
        if not isinstance(first, int) or not isinstance(second, int):
            return None
        order[first], order[second] = order[second], order[first]
    return (source, order) if isinstance(source, fx.Node) else None


def peel_permutations(node: fx.Node) -> tuple[fx.Node, list[int]]:
    """(x, order) with ``node == x.permute(order)``, through a whole chain of transposes."""
    result = value(node)
    order = list(range(result.dim() if result is not None else 0))
    while (step := permutation(node)) is not None:
        node, inner = step
        order = [inner[d] for d in order]
    return node, order


# Views (or copies) that only group the dimensions of a tensor otherwise, its elements in the same order.
VIEWS = names("view reshape flatten unflatten unsqueeze squeeze contiguous")


def called(graph: fx.Graph, method: str, node: fx.Node, *arguments: Any) -> fx.Node:
    """The node of a method's call, which later passes know the value of as they do of captured ones."""
    made, tensor = graph.call_method(method, (node, *arguments)), value(node)
    if tensor is not None:
        result: torch.Tensor = getattr(tensor.detach(), method)(*arguments)
        made.meta["example_value"] = result.requires_grad_(tensor.requires_grad)
    return made


def computed(graph: fx.Graph, function: Callable[..., torch.Tensor], *arguments: Any) -> fx.Node:
    """The node of a function's call, with its value as `called` has it. arguments: tensors as nodes, and numbers."""
    made, values = graph.call_function(function, arguments), fx.map_arg(arguments, value)
    if not any(item is None for item in values):
        with torch.no_grad():
            result = function(*values)
        needed = any(item.requires_grad for item in values if isinstance(item, torch.Tensor))
        made.meta["example_value"] = result.requires_grad_(needed)
    return made


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')


def source_line(node: fx.Node) -> str:
    """The user's source line behind a node, in words."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return f"node {node.name}"
    last = frames[-1]
    return f"`{last['code'].strip()}` ({os.path.basename(last['file'])}:{last['line']})"
