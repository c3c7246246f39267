"""Operations in the graphs that Inductor compiles, and what every pass on such a graph is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

aten, prims = torch.ops.aten, torch.ops.prims
HALF = (torch.bfloat16, torch.float16)
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}
# What only says anew where the elements of one tensor lie.
VIEWS = {
    aten.permute.default, aten.t.default, aten.transpose.int, aten.view.default, aten.reshape.default, aten._unsafe_view.default,
}  # fmt: skip
SPLITS = {aten.split.Tensor, aten.split_with_sizes.default}


class InductorPass(CustomGraphPass):
    """Compiled code is cached under the files of a pass: it changes with them. A pass names those beside its own."""

    files: tuple[str, ...] = ()

    def uuid(self) -> bytes:
        own = str(sys.modules[type(self).__module__].__file__)
        hashed: bytes = get_hash_for_files((own, __file__, *self.files))
        return hashed


class PassSequence(CustomGraphPass):
    """Passes one after another, where Inductor takes one."""

    def __init__(self, passes: Sequence[InductorPass]) -> None:
        self.passes = tuple(passes)

    def __call__(self, graph: fx.Graph) -> None:
        for one in self.passes:
            one(graph)

    def uuid(self) -> bytes:
        return b"".join(one.uuid() for one in self.passes)


def is_item(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def elementwise(node: fx.Node) -> bool:
    """What may be computed anew at no cost but its own: nothing that draws random numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    tags, cast = node.target.tags, node.target is prims.convert_element_type.default
    return (torch.Tag.pointwise in tags or cast) and torch.Tag.nondeterministic_seeded not in tags


def size(node: fx.Node) -> int:
    """Elements of its value; 0 where that is no tensor."""
    made = node.meta.get("val")
    return made.numel() if isinstance(made, torch.Tensor) else 0


def dimension(cat: fx.Node) -> int:
    """Along which the parts of a join lie one after another, counted from the first."""
    dim: int = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    return dim % int(cat.meta["val"].dim())


def for_products(node: fx.Node) -> bool:
    """Whether a product reads it, or a view of it, and nothing else does but who gets the results of the graph."""
    ends: list[fx.Node] = []
    todo = [node]
    while todo:
        for user in todo.pop().users:
            (todo if user.target in VIEWS else ends).append(user)
    products = [end for end in ends if end.target in PRODUCTS]
    return bool(products) and all(end in products or end.op == "output" for end in ends)
