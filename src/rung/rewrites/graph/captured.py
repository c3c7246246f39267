"""What a captured graph carries besides its nodes: names of Dynamo and AOTAutograd, private ones, used here alone.

Without them a rewritten graph is compiled as one that Dynamo never saw, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx


def transformed(graph: fx.Graph) -> bool:
    """Whether transforms of torch.func (`vmap`, `grad`, `jvp`) begin or end in it. What lies within has values that say neither how large it is
    nor whether it needs a gradient."""
    modules = (getattr(node.target, "__module__", None) or "" for node in graph.nodes if node.op == "call_function")
    return any(name.startswith(("torch._functorch", "torch._C._functorch")) for name in modules)


def own_copy(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph with what AOTAutograd asks of it; Dynamo goes on counting the inputs of its own."""
    nodes: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, nodes))
    for old, new in nodes.items():
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    made = fx.GraphModule(gm, graph)
    for name, held in vars(gm).items():
        if name not in vars(made):
            setattr(made, name, held)
    made.meta = gm.meta
    return made


def let_go(nodes: Iterable[fx.Node]) -> None:
    """Once a graph is compiled: drops what its nodes, and those that were erased, tell of tensors. Dynamo's tensors without numbers hold weak
    references to parameters, which then could not be swapped (`torch.utils.swap_tensors`). Inputs of a branch (`torch.cond`) have one
    dictionary with Dynamo's own, which stays."""
    for node in nodes:
        node.meta = {name: held for name, held in node.meta.items() if name not in ("grapharg", "example_value")}


def is_weight(node: fx.Node) -> bool:
    """Whether an input is a parameter or buffer, whose memory stays the same from call to call."""
    return bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def add_weight(graph: fx.Graph, example: torch.Tensor, meta: dict[str, Any]) -> fx.Node:
    """One more input after the last, which is a weight to the compiler."""
    from torch._dynamo.source import ConstantSource  # seconds, which only a process that compiles should wait for

    inputs = graph.find_nodes(op="placeholder")
    with graph.inserting_after(inputs[-1]):
        made = graph.placeholder(f"joined_{len(inputs)}")
    made.meta = {**meta, "example_value": example, "tensor_dict": {"_dynamo_static_input_type": "unguarded"}}
    # AOTAutograd asks every input where in the user's program it comes from, and no two may come from one place.
    made._dynamo_source = ConstantSource(source_name=str(made.target))
    return made


def without_numbers(like: torch.Tensor) -> AbstractContextManager[Any]:
    """Where new tensors are as those that Dynamo computed for a graph's nodes: sizes and strides alone."""
    return getattr(like, "fake_mode", None) or nullcontext()
