"""Parts of a gradient, written where they are joined.

Where a product's result is read in parts (gate and up out of one product), its gradient is the gradients of the parts, joined.
On a GPU, Inductor writes such a join as one kernel that loads what every part is computed from for every part, and
chooses by the place. Here each part is computed into its place of the whole, and parts of the same inputs are one kernel, which
loads each of them once. Those of a query, a key and a value are rotated_joins.py's. This is a pass on Inductor's graphs, because
gradients are nodes only there.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._inductor import ir
from torch._inductor.lowering import register_lowering

from rung.rewrites.inductor_passes import rotated_joins
from rung.rewrites.inductor_passes.base import VIEWS, InductorPass, aten, dimension, elementwise, for_products, size

SCHEMA = "(Tensor[] parts, int dim) -> Tensor"


@torch.library.custom_op("rung::join", mutates_args=(), schema=SCHEMA)
def join(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    """torch.cat, which Inductor is not to write as one kernel that chooses."""
    return torch.cat(parts, dim)


@join.register_fake
def _(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat(parts, dim)


@register_lowering(torch.ops.rung.join.default, type_promotion_kind=None)
def _in_place(parts: list[ir.TensorBox], dim: int) -> ir.TensorBox:
    return ir.TensorBox(ir.ConcatKernel.create(parts, dim))


class FusedDgrad(InductorPass):
    """For `torch._inductor.config.post_grad_custom_pre_pass`."""

    files = (rotated_joins.__file__,)

    def __call__(self, graph: fx.Graph) -> None:
        place(graph)
        rotated_joins.place_rotated(graph)


def place(graph: fx.Graph) -> int:
    """Let all joins that products read, of equal parts computed elementwise from a common input, be made in place; how many."""
    count = 0
    for joined in graph.find_nodes(op="call_function", target=aten.cat.default):
        parts, dim = joined.args[0], dimension(joined)
        if _alike(parts) and for_products(joined):
            joined.target = torch.ops.rung.join.default
            joined.args, joined.kwargs = (parts, dim), {}
            count += 1
    return count


def _alike(parts: list[fx.Node]) -> bool:
    """Whether one kernel can compute all of them: the same shape and dtype, and something of their size that all read."""
    made = [part.meta.get("val") for part in parts]
    first = made[0]
    if len(parts) < 2 or not isinstance(first, torch.Tensor):
        return False
    equal = all(isinstance(m, torch.Tensor) and (m.shape, m.dtype) == (first.shape, first.dtype) for m in made)
    return equal and bool(set.intersection(*(_read(part) for part in parts)))


def _read(part: fx.Node) -> set[fx.Node]:
    """From which values of its size or more it is computed elementwise; none where it is not computed so."""
    found: set[fx.Node] = set()
    seen, todo = {part}, [part]
    while todo:
        node = todo.pop()
        through = elementwise(node) or node.target in VIEWS
        if not through and size(node) >= size(part):
            found.add(node)
        fresh = [n for n in node.all_input_nodes if n not in seen] if through else []
        seen |= set(fresh)
        todo += fresh
    return found - {part}
