"""Inputs of products computed again for the gradients of their weights, where that costs next to nothing.

The gradient of a weight needs the product's input. Often this is an elementwise function of what the backward pass reads
in any case: a gated activation of its two halves, a normed value of what was normed. torch's partitioner keeps it all the
same, because its forward and backward uses lie far apart. Here it is marked to be computed again, as selective activation
recomputation does (Korthikanti et al. 2022), by the mark that torch.utils.checkpoint leaves: values and their rounding are those of
the forward pass. This is a pass on the joint graph, because only there both passes can be seen. What attention keeps is
first copied out of what it is a part of (saved_activations.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from rung.rewrites.inductor_passes import saved_activations
from rung.rewrites.inductor_passes.base import PRODUCTS, InductorPass, aten, elementwise, size
from rung.rewrites.inductor_passes.saved_activations import backward_nodes, copy_saved_parts

VIEWS = {*saved_activations.WHOLE, aten.slice.Tensor}
SUMS = {aten.add.Tensor, aten.sub.Tensor}
SMALL = 1 / 8  # of a product's input: row statistics and weights of norms, which are kept whatever is done


class Recompute(InductorPass):
    """For `torch._inductor.config.joint_custom_post_pass`."""

    files = (saved_activations.__file__,)

    def __call__(self, graph: fx.Graph) -> None:
        copy_saved_parts(graph)
        mark_inputs(graph)


def mark_inputs(graph: fx.Graph) -> int:
    """Mark the inputs of products that the backward pass shall compute again; how many."""
    joint = _Joint(graph)
    operands = {operand for product in joint.late if product.target in PRODUCTS for operand in joint.worth(product)}
    for operand in operands:
        for node in joint.chain(operand):
            if "recompute" not in node.meta:  # what the user's own checkpoints say holds
                node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}
    return len(operands)


class _Joint:
    """late: what depends on the gradients that come in; early: what the forward pass gives, and all that this needs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.late = backward_nodes(graph)
        self.early: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            given = node.op == "output" or node in self.early
            self.early |= {n for n in node.all_input_nodes if n not in self.late} if given else set()
        reads = {n for node in self.late if node.target not in PRODUCTS for n in node.all_input_nodes}
        # The forward pass leaves another value in these: what is computed of them again would be computed of that.
        self.written = {_base(node.args[0]) for node in graph.nodes if _writes(node)}
        # What the backward pass reads otherwise than as a factor of a product, and what that is computed from.
        self.needed = {part for node in reads - set(self.late) for part in self._walked(node)}

    def worth(self, product: fx.Node) -> list[fx.Node]:
        """Its inputs that are elementwise, where all that they take, apart from weights and statistics, is there in any case."""
        operands = []
        for operand in {_base(n) for n in product.all_input_nodes if n not in self.late}:
            walked = set(self._walked(operand))
            leaves = [n for n in walked if not self._passes(n) and n.op != "placeholder"]
            large = [n for n in leaves if size(n) > SMALL * size(operand)]
            if self._passes(operand) and large and all(n in self.needed for n in large) and not walked & self.written:
                operands.append(operand)
        return operands

    def chain(self, node: fx.Node) -> list[fx.Node]:
        """The node and what it is computed from, as far as that is elementwise."""
        return [n for n in self._walked(node) if self._passes(n)]

    def _walked(self, node: fx.Node) -> Iterator[fx.Node]:
        """The chain, and where it ends."""
        seen, todo = {node}, [node]
        while todo:
            at = todo.pop()
            yield at
            if self._passes(at):
                fresh = [n for n in at.all_input_nodes if n not in seen]
                seen |= set(fresh)
                todo += fresh

    def _passes(self, node: fx.Node) -> bool:
        """Whether it is elementwise, or a view. A sum of two activations ends the chain in the forward pass: it is the residual
        stream, which would be computed again from its beginning."""
        if node.target in SUMS and node in self.early:
            return sum(size(n) == size(node) for n in node.all_input_nodes) < 2
        return node.target in VIEWS or elementwise(node)


def _writes(node: fx.Node) -> bool:
    """Whether it copies into an input: of an input without a gradient, AOTAutograd does so at the end of the graph."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _base(node: fx.Node) -> fx.Node:
    """What a view is a view of."""
    while node.target in VIEWS and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
