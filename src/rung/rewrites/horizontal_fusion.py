"""Linear layers that read the same input become one linear over the concatenated weights.

In training the concatenation runs in the graph, so each weight stays the user's own parameter and gets its own
gradient. Weights that need none are read where they lie (packed_weights.py).
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import ELEMENTWISE, argument, kind, permutation, source_line, value
from rung.rewrites.graph.writes import aliases, between, may_touch, storage, switches_mode, written
from rung.rewrites.packed_weights import packed_input

_DEEPEST = 8  # quick_gelu and the long tanh form of gelu fit; a residual stream does not


@dataclass(frozen=True)
class _Linear:
    node: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    width: int


def fuse_gate_up(graph: fx.Graph) -> tuple[int, list[str]]:
    return _fuse(graph, gate_up=True)


def fuse_qkv(graph: fx.Graph) -> tuple[int, list[str]]:
    return _fuse(graph, gate_up=False)


def _fuse(graph: fx.Graph, gate_up: bool) -> tuple[int, list[str]]:
    count, skipped = 0, [] if gate_up else _subclasses(graph)
    for source, members in _groups(graph):
        if _are_gate_and_up(members) != gate_up:
            continue
        reason = _obstacle(source, members)
        if reason:
            skipped.append(f"linear at {source_line(members[0].node)}: {reason}")
        else:
            _fuse_group(graph, source, members)
            count += 1
    return count, skipped


def _groups(graph: fx.Graph) -> list[tuple[fx.Node, list[_Linear]]]:
    groups: dict[tuple[Any, ...], list[_Linear]] = defaultdict(list)
    region, differentiated = 0, _differentiated(graph)
    for node in graph.nodes:
        # Two layers on the two sides of an autocast or no_grad boundary compute differently.
        region += switches_mode(node)
        # A weight whose result nobody reads, or only what is detached, has no gradient; in a group it would get one of zeros.
        read = projection(node) if node.users else None
        if read is None or (differentiated and node not in differentiated and _trained(node)):
            continue
        source, weight, bias = read
        tensor = value(weight)
        if not isinstance(source, fx.Node) or tensor is None or value(source) is None or value(node) is None:
            continue
        if not is_dense_input(weight) or (bias is not None and not is_dense_input(bias)) or tensor.dim() != 2:
            continue
        # Frozen and trained weights stay apart: together the frozen one would pay for a gradient.
        key = (source, region, tensor.dtype, tensor.device, tensor.shape[1], tensor.requires_grad)
        groups[key].append(_Linear(node, weight, bias, tensor.shape[0]))
    return [(key[0], members) for key, members in groups.items() if len(members) > 1]


def _trained(node: fx.Node) -> bool:
    return (tensor := value(node)) is not None and tensor.requires_grad


def _differentiated(graph: fx.Graph) -> set[fx.Node]:
    """What a result that leaves the graph with a gradient is computed of, or what is written to memory; empty where none leaves so."""
    left = [item for node in graph.nodes if node.op == "output" for item in node.all_input_nodes]
    level = [item for item in left if _trained(item)]
    level += [item for node in graph.nodes if level and written(node) for item in node.all_input_nodes]
    differentiated = set(level)
    while level:
        # Of tuples, as split gives them, nothing is known.
        level = [i for n in level for i in n.all_input_nodes if value(i) is None or _trained(i)]
        level = [item for item in dict.fromkeys(level) if item not in differentiated]
        differentiated.update(level)
    return differentiated


def projection(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """(input, weight [N, K], bias or None) of a linear layer in its spellings: F.linear, ``x @ weight.T``."""
    if kind(node) == "linear" and node.op == "call_function":
        weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
        return (argument(node, 0, "input"), weight, bias) if bias is None or _one_each(bias, weight) else None
    if kind(node) != "matmul" or len(node.args) != 2:
        return None
    turned = permutation(node.args[1]) if isinstance(node.args[1], fx.Node) else None
    return (node.args[0], turned[0], None) if turned and turned[1] == [1, 0] else None


def _one_each(bias: Any, weight: Any) -> bool:
    """Whether the bias has one number for each row of the weight: torch takes one for all, and one for each row of the input, too."""
    some, rows = value(bias), value(weight)
    return some is None or rows is None or some.shape == rows.shape[:1]


def _subclasses(graph: fx.Graph) -> list[str]:
    """Siblings whose weights are not plain tensors: quantised, sharded, wrapped; each keeps a product of its own."""
    wrapped: dict[Any, list[tuple[fx.Node, str]]] = defaultdict(list)
    for node in graph.nodes:
        read = projection(node) if node.users else None
        tensor = value(read[1]) if read else None
        if read and tensor is not None and is_traceable_wrapper_subclass(tensor):
            wrapped[read[0]].append((node, type(tensor).__name__))
    groups = [group for group in wrapped.values() if len(group) > 1]
    return [f"linear at {source_line(g[0][0])}: its weight is a {g[0][1]}, not a plain tensor" for g in groups]


def is_dense_input(node: object) -> bool:
    """A dense tensor that exists before the graph runs."""
    if not isinstance(node, fx.Node) or node.op not in ("placeholder", "get_attr"):
        return False
    tensor = value(node)
    dense = tensor is not None and tensor.layout == torch.strided and tensor.dtype.is_floating_point
    return dense and not is_traceable_wrapper_subclass(tensor)


def _are_gate_and_up(members: list[_Linear]) -> bool:
    if len(members) != 2 or members[0].width != members[1].width:
        return False
    left, right = (_elementwise_reach(member.node) for member in members)
    for node in left:
        for user in node.users:
            if kind(user) == "mul" and any(other in right for other in user.all_input_nodes if other is not node):
                return True
    return False


def _elementwise_reach(node: fx.Node) -> set[fx.Node]:
    """The node and what elementwise functions of it alone lead to."""
    reached, level = {node}, [node]
    for _ in range(_DEEPEST):
        level = [
            user
            for item in level
            for user in item.users
            if user not in reached and kind(user) in ELEMENTWISE and set(user.all_input_nodes) <= reached
        ]
        reached.update(level)
    return reached


def _obstacle(source: fx.Node, members: list[_Linear]) -> str:
    first, last = members[0].node, members[-1].node
    memory = {storage(source)}
    memory |= {storage(item) for m in members for item in (m.weight, m.bias) if item is not None}
    if any(written(node) and may_touch(node, memory) for node in between(first, last)):
        return "their input or a weight is written in place between them"
    results = {storage(member.node) for member in members}
    graph = source.graph
    # Chunks of one split are views that autograd does not let anyone write to.
    if any(written(node) and may_touch(node, results) for node in graph.nodes if node > first):
        if any(storage(item) in results for node in graph.nodes for item in written(node)):
            return "one of the outputs is written in place"
        return "an operation that may write anywhere follows" if _unknown_writer(members) else ""
    biases = {b.dtype for m in members if m.bias is not None and (b := value(m.bias)) is not None}
    return "their biases have different dtypes" if len(biases) > 1 else ""


def _unknown_writer(members: list[_Linear]) -> bool:
    return any(alias in written(user) for m in members for alias in aliases(m.node) for user in alias.users)


def _fuse_group(graph: fx.Graph, source: fx.Node, members: list[_Linear]) -> None:
    first = members[0].node
    for member in members:
        for item in (member.weight, member.bias):
            if item is not None and item.op == "get_attr" and item > first:
                first.prepend(item)
    copies = [free_readers(member.node) for member in members]
    trace = {key: first.meta[key] for key in ("stack_trace", "nn_module_stack") if key in first.meta}
    weight = packed_input(graph, [member.weight for member in members])
    biases = [member.bias for member in members if member.bias is not None]
    bias = packed_input(graph, biases) if len(biases) == len(members) else None
    with graph.inserting_before(first):
        weight = weight or graph.call_function(torch.cat, ([member.weight for member in members], 0))
        bias = bias or _packed_bias(graph, members)
        fused = graph.call_function(F.linear, (source, weight, bias))
        outputs = [value(member.node) for member in members]
        fused.meta["example_value"] = torch.cat([part for part in outputs if part is not None], -1)
        weight.meta["example_value"] = torch.cat([part for m in members if (part := value(m.weight)) is not None])
        chunks = graph.call_method("split", (fused, [member.width for member in members]), {"dim": -1})
        for spot, (member, copy) in enumerate(zip(members, copies, strict=True)):
            part = graph.call_function(operator.getitem, (chunks, spot))
            if copy:
                part.meta.update(trace)
                part = graph.call_method("contiguous", (part,))
            part.meta = dict(member.node.meta)
            member.node.replace_all_uses_with(part)
    for node in (weight, fused, chunks, *([bias] if bias is not None else [])):
        if node.op != "placeholder":
            node.meta.update(trace)
    for member in members:
        graph.erase_node(member.node)


def _packed_bias(graph: fx.Graph, members: list[_Linear]) -> fx.Node | None:
    known = next((value(m.bias) for m in members if m.bias is not None), None)
    if known is None:
        return None
    parts = []
    for member in members:
        if member.bias is not None:
            parts.append(member.bias)
        else:
            options = {"dtype": known.dtype, "device": known.device}
            parts.append(graph.call_function(torch.zeros, ((member.width,),), options))
    return graph.call_function(torch.cat, (parts, 0))
