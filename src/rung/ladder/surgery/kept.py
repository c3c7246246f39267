"""Weights that autocast would cast in every call are kept as it casts them.

Under autocast a float32 weight is read, and its copy in 16 bits written, before each product that reads the copy: eight bytes an
element in the place of two, most of what a step moves where few tokens are multiplied. In inference the copy of the call
before is as good, as long as the weight is the same: by identity, address and version counter, which are asked at every call. What
is another is copied again, into the same memory, which compiled code and recorded graphs go on reading.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import fx

from rung.ladder.surgery.captured import add_weight, without_numbers
from rung.ladder.surgery.joined import HOME, MEMBERS
from rung.ladder.surgery.normalize import kind, permutation, value

KEPT = "rung_kept"
PRODUCTS = ("linear", "matmul", "addmm", "conv1d", "conv2d", "conv3d")
NARROW = (torch.bfloat16, torch.float16)


def keep_casts(graph: fx.Graph) -> tuple[int, list[str]]:
    """Gives every product under autocast an input that holds its weight, and its bias, as autocast casts them; how many."""
    made: dict[tuple[str, torch.dtype], fx.Node] = {}
    count = 0
    for node in list(graph.nodes):
        result = value(node)
        if kind(node) not in PRODUCTS or result is None or result.dtype not in NARROW:
            continue
        for read in node.all_input_nodes:
            turned = permutation(read)
            weight = turned[0] if turned else read
            wide = value(weight)
            if wide is None or wide.dtype != torch.float32 or not {HOME, MEMBERS} & set(weight.meta):
                continue
            key = weight.name, result.dtype
            if key not in made:
                made[key] = _kept(graph, weight, result.dtype)
            node.replace_input_with(read, _turned(graph, read, weight, made[key]) if turned else made[key])
            count += 1
    for node in graph.find_nodes(op="placeholder"):
        if MEMBERS in node.meta and not node.users:
            graph.erase_node(node)  # its copy is made of the members, which then need not lie together
    return count, []


def _kept(graph: fx.Graph, weight: fx.Node, dtype: torch.dtype) -> fx.Node:
    wide = value(weight)
    assert wide is not None
    with without_numbers(wide), torch.no_grad():
        example = wide.detach().to(dtype)
    return add_weight(graph, example, {KEPT: (weight.meta.get(MEMBERS, (weight.name,)), dtype)})


def _turned(graph: fx.Graph, read: fx.Node, weight: fx.Node, kept: fx.Node) -> fx.Node:
    """What read the weight, `weight.T`, of its copy."""
    with graph.inserting_before(read):
        made = graph.node_copy(read, lambda item: kept if item is weight else item)
    made.meta = {**read.meta, "example_value": read.meta["example_value"].to(kept.meta["example_value"].dtype)}
    return made


class Kept:
    """The copy of one weight, or of several below one another, found among the arguments of every call."""

    def __init__(self, spots: Sequence[int], dtype: torch.dtype) -> None:
        self._spots, self._dtype = tuple(spots), dtype
        self._copies: dict[tuple[int, ...], _Copy] = {}  # one code may serve many layers

    def __call__(self, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        tensors = [arguments[spot] for spot in self._spots]
        if any(t.is_inference() for t in tensors):  # they have no version counter
            return torch.cat([t.to(self._dtype) for t in tensors])
        key = tuple(map(id, tensors))
        copy = self._copies.get(key)
        if copy is None or not copy.fits(tensors):
            self._copies = {k: one for k, one in self._copies.items() if one.alive}
            copy = self._copies[key] = _Copy(tensors, self._dtype)
        copy.renew()
        return copy.tensor

    def renew(self) -> None:
        """What a recorded graph reads is of the present weights again."""
        for copy in self._copies.values():
            copy.renew()

    def undo(self) -> None:
        self._copies.clear()


class _Copy:
    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        self._of = [weakref.ref(t) for t in tensors]
        self._seen: list[tuple[int, int]] = [(-1, -1)] * len(tensors)
        with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be written to outside of it
            self.tensor = torch.cat([t.detach().to(dtype) for t in tensors])
            self._parts = self.tensor.split([len(t) for t in tensors])
        self._seen = [(t._version, t.data_ptr()) for t in tensors]

    @property
    def alive(self) -> bool:
        return all(one() is not None for one in self._of)

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether it is a copy of these, and not of others that were where they are."""
        same = all(one() is t for one, t in zip(self._of, tensors, strict=True))
        return same and tensors[0].device == self.tensor.device

    def renew(self) -> None:
        for k, (one, part) in enumerate(zip(self._of, self._parts, strict=True)):
            tensor = one()
            if tensor is None or (now := (tensor._version, tensor.data_ptr())) == self._seen[k]:
                continue
            with torch.inference_mode(False), torch.no_grad():
                part.copy_(tensor.detach())
            self._seen[k] = now
