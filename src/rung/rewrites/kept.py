"""Values of weights alone, kept from call to call: as autocast casts a weight (here), or as the graph computes it (`folded_weights.py`).

Under autocast a float32 weight is read, and its copy in 16 bits written, before each product that reads the copy: eight bytes an
element in the place of two, most of what a step moves where few tokens are multiplied. In inference the copy of the call
before is as good, as long as the weight is the same: by identity, address and version counter, and as long as no optimizer has
stepped, which is asked at every call. What may be another is computed again, into the same memory, which compiled code and recorded
graphs go on reading.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import fx
from torch.optim.optimizer import register_optimizer_step_post_hook

from rung.rewrites.batch_norm import Statistics
from rung.rewrites.graph.captured import add_weight, without_numbers
from rung.rewrites.graph.normalize import kind, permutation, source_line, value
from rung.rewrites.graph.writes import storage, written
from rung.rewrites.joined import HOME, MEMBERS, Home

KEPT = "rung_kept"
PRODUCTS = ("linear", "matmul", "addmm", "conv1d", "conv2d", "conv3d")
NARROW = (torch.bfloat16, torch.float16)


def keep_casts(graph: fx.Graph) -> tuple[int, list[str]]:
    """Gives every product under autocast an input that holds its weight, and its bias, as autocast casts them; how many, and
    why not others."""
    inputs = {node.name: node for node in graph.find_nodes(op="placeholder")}
    touched = {storage(item) for node in graph.nodes for item in written(node)}
    made: dict[tuple[str, torch.dtype], fx.Node] = {}
    count, skipped = 0, []
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
            members = [inputs[name] for name in weight.meta.get(MEMBERS, (weight.name,))]
            if reason := _obstacle(members, touched):
                skipped.append(f"weight of {source_line(node)}: {reason}")
                continue
            key = weight.name, result.dtype
            if key not in made:
                made[key] = _kept(graph, weight, members, result.dtype)
            node.replace_input_with(read, _turned(graph, read, weight, made[key]) if turned else made[key])
            count += 1
    for node in inputs.values():
        if MEMBERS in node.meta and not node.users:
            graph.erase_node(node)  # its copy is made of the members, which then need not lie together
    return count, skipped


def _obstacle(members: Sequence[fx.Node], touched: set[int | None]) -> str:
    homes: list[Home] = [node.meta[HOME] for node in members]
    if not all(home.parameter for home in homes):
        return "it is not a parameter with a version counter"
    if not all(home.alone for home in homes) or any(node.meta["example_value"].dim() == 0 for node in members):
        return "it shares its memory with another tensor, or is a single number"
    if touched & {storage(node) for node in members}:
        return "the step itself may write to it"
    return ""


def _kept(graph: fx.Graph, weight: fx.Node, members: Sequence[fx.Node], dtype: torch.dtype) -> fx.Node:
    wide = value(weight)
    assert wide is not None
    with without_numbers(wide), torch.no_grad():
        example = wide.detach().to(dtype)
    return add_kept(graph, example, members, Cast(dtype))


def add_kept(graph: fx.Graph, example: torch.Tensor, members: Sequence[fx.Node], recipe: Recipe) -> fx.Node:
    """A new input of the graph: what the recipe makes of these inputs, kept from call to call. example: it, without numbers."""
    return add_weight(graph, example, {KEPT: (tuple(node.name for node in members), recipe)})


def _turned(graph: fx.Graph, read: fx.Node, weight: fx.Node, kept: fx.Node) -> fx.Node:
    """What read the weight, `weight.T`, of its copy."""
    with graph.inserting_before(read):
        made = graph.node_copy(read, lambda item: kept if item is weight else item)
    made.meta = {**read.meta, "example_value": read.meta["example_value"].to(kept.meta["example_value"].dtype)}
    return made


class Recipe(Protocol):
    """How a value is made of tensors."""

    @property
    def key(self) -> Hashable:
        """Equal for recipes that make the same of the same tensors."""

    def new(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The value, in memory of its own."""

    def write(self, made: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """The value of tensors of the same sizes, in the memory of one that was made before."""


@dataclass(frozen=True)
class Cast:
    """Tensors below one another, in another dtype."""

    dtype: torch.dtype

    @property
    def key(self) -> Hashable:
        return (self.dtype,)

    def new(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(tensors) == 1:  # whose strides stay
            return tensors[0].detach().to(self.dtype, copy=True)
        return torch.cat([t.detach().to(self.dtype) for t in tensors])

    def write(self, made: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        for part, tensor in zip(made.split([len(t) for t in tensors]), tensors, strict=True):
            part.copy_(tensor.detach())


class Copies:
    """The values of all graphs of one function: whatever the shapes that they are for, they read the same."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._held: dict[tuple[Hashable, ...], _Copy] = {}
        self._all: list[weakref.ref[torch.Tensor]] = []  # what all of them are made of, each once
        self._seen: list[list[int]] = []

    def of(self, tensors: Sequence[torch.Tensor], recipe: Recipe) -> torch.Tensor:
        key = recipe.key, *map(id, tensors)
        copy = self._held.get(key)
        if copy is None or not copy.is_of(tensors) or not copy.renew(tensors):
            self._held = {k: one for k, one in self._held.items() if one.alive()}
            copy = self._held[key] = _Copy(tensors, recipe, self._counts(tensors))
            read = {id(t): t for one in self._held.values() for t in (*one.alive(), *one.counted())}
            self._all, self._seen = [weakref.ref(t) for t in read.values()], []
        return copy.tensor

    def _counts(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """What is counted up where a batch norm writes to them; None for each of which that is not known."""
        buffers = [t for t in tensors if t.is_floating_point() and not isinstance(t, torch.nn.Parameter)]
        if any(self._statistics.count(t) is None for t in buffers):
            self._statistics.look()  # the model was given others since
        return [self._statistics.count(t) for t in buffers]

    def renew(self) -> None:
        """What a recorded graph reads is of the present weights again. All of them are asked at once, before every replay."""
        there = [t for one in self._all if (t := one()) is not None]
        seen = [[steps_taken()], [t._version for t in there], list(map(torch.Tensor.data_ptr, there))]
        if seen == self._seen and not any(one.blind for one in self._held.values()):
            return
        for copy in self._held.values():
            if tensors := copy.alive():
                copy.renew(tensors)
        self._seen = seen

    def tensors(self) -> list[torch.Tensor]:
        return [copy.tensor for copy in self._held.values()]


class Kept:
    """The value that is made of some of the arguments of every call."""

    def __init__(self, spots: Sequence[int], recipe: Recipe, copies: Copies) -> None:
        self._spots, self._recipe, self._copies = tuple(spots), recipe, copies

    def __call__(self, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._copies.of([arguments[spot] for spot in self._spots], self._recipe)


class _Copy:
    def __init__(self, tensors: Sequence[torch.Tensor], recipe: Recipe, counts: Sequence[torch.Tensor | None]) -> None:
        self._of, self._recipe = [weakref.ref(t) for t in tensors], recipe
        self._counts = [weakref.ref(t) for t in counts if t is not None]
        self.blind = None in counts  # to what may be written to them, so that it is made anew at every call
        self._like = _kinds(tensors)
        self._seen = self._marks(tensors)  # before they are read: what is written meanwhile is copied again
        with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be written to outside of it
            self.tensor = recipe.new(tensors)

    def alive(self) -> list[torch.Tensor]:
        """What it is a copy of; nothing where a part of that is gone."""
        tensors = [t for one in self._of if (t := one()) is not None]
        return tensors if len(tensors) == len(self._of) else []

    def counted(self) -> list[torch.Tensor]:
        return [t for one in self._counts if (t := one()) is not None]

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are it, and not others that came to lie where they were."""
        return all(one() is t for one, t in zip(self._of, tensors, strict=True))

    def renew(self, tensors: Sequence[torch.Tensor]) -> bool:
        """From the tensors that it is a copy of, where they may be others now; False where they have other sizes, and it has to be
        made anew. Asked before every call, so that kinds are looked at only where something is another."""
        marks = self._marks(tensors)
        if marks == self._seen and not self.blind:
            return True
        if self._like != _kinds(tensors):
            return False
        with torch.inference_mode(False), torch.no_grad():
            self._recipe.write(self.tensor, tensors)
        self._seen = marks
        return True

    def _marks(self, tensors: Sequence[torch.Tensor]) -> list[object]:
        return [
            steps_taken(),
            *((t._version, t.data_ptr(), t.shape) for t in tensors),
            *(t._version for t in self.counted()),
        ]


def _kinds(tensors: Sequence[torch.Tensor]) -> list[object]:
    return [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]


# How often optimizers of this process have stepped. Their fused kernels write to weights without raising version counters, so whoever keeps
# a copy of a weight asks here, too. Collectives (`torch.distributed.broadcast`), kernels of one's own and steps in graphs that others recorded
# are seen by neither.
_taken = 0
_counted = False


def steps_taken() -> int:
    """By optimizers of this process, since it was first asked."""
    global _counted
    if not _counted:
        _counted = True
        # Here, where compiling is near: disabling loads Dynamo, which takes as long as torch itself.
        register_optimizer_step_post_hook(torch.compiler.disable(_counted_step))
    return _taken


def step_taken() -> None:
    """By a graph that was replayed."""
    global _taken
    _taken += 1


def _counted_step(*_: object) -> None:
    step_taken()
