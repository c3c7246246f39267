"""Values that depend on weights alone, kept from call to call: what passes made inputs of (`cast_cache.py`, `folded_weights.py`).

The value of the call before is as good as long as the weights are the same. That is asked at every call: whether they are the same tensors, in the
same memory, with the same version counters, whether an optimizer has stepped, and whether a batch norm has trained. What may be another is
computed again, into the same memory, which compiled code and recorded graphs go on reading.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, Protocol

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rung.rewrites.graph.captured import add_weight
from rung.rewrites.packed_weights import on_collected
from rung.rewrites.statistics import Count, Statistics

CACHED = "rung_kept"
MOST_LAYERS = 256  # that one graph remembers


def add_cached(graph: fx.Graph, example: torch.Tensor, members: Sequence[fx.Node], computation: Computation) -> fx.Node:
    """A new input of the graph: what the computation makes of these inputs, kept from call to call. example: it, without numbers."""
    return add_weight(graph, example, {CACHED: (tuple(node.name for node in members), computation)})


def replay_views(graph: fx.Graph, views: Sequence[fx.Node], cached: fx.Node) -> fx.Node:
    """The same views of a value that is kept as there are of what it stands for. views: the first is of that, each other one of the one before."""
    for view in views:
        with graph.inserting_before(view):
            made = graph.node_copy(view, lambda item, cached=cached: cached)  # it reads nothing else
        made.meta = {**view.meta, "example_value": view.meta["example_value"].to(cached.meta["example_value"].dtype)}
        cached = made
    return cached


class Computation(Protocol):
    """How a value is made of tensors."""

    @property
    def key(self) -> Hashable:
        """Equal for those that make the same of the same tensors."""

    def new(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The value, in memory of its own."""

    def write(self, made: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """The value of tensors of the same sizes, in the memory of one that was made before."""


class WeightCache:
    """The values of all graphs of one function: whatever the shapes that they are for, they read the same. They go with what they are
    made of."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._entries: dict[Hashable, _Entry] = {}
        self._watch: _Watch | None = None  # on what all of them are made of

    def of(self, tensors: Sequence[torch.Tensor], computation: Computation) -> _Entry:
        key = computation.key, *map(id, tensors)
        entry = self._entries.get(key)
        if entry is None or not entry.is_of(tensors) or not entry.renew(tensors, self.watch):
            self._entries[key] = entry = _Entry(tensors, computation, self.watch, on_collected(self.drop, key))
            self._watch = None
        return entry

    def watch(self, tensors: Sequence[torch.Tensor], *, layout: bool = True) -> _Watch:
        """On these, and on what is counted up where a batch norm writes to them."""
        buffers = [t for t in tensors if t.is_floating_point() and not isinstance(t, torch.nn.Parameter)]
        if not all(map(self._statistics.knows, buffers)):
            self._statistics.look()  # the model was given others since
        return _Watch(tensors, [self._statistics.counts(t) for t in buffers], layout)

    def renew(self) -> bool:
        """What a recorded graph reads is of the present weights again. Whoever replays it asks how weights lie; here it is whether they were
        written to, of all of them at once. False where nothing was to be done."""
        if self._watch is not None and self._watch.same():
            return False
        entries = list(self._entries.values())  # one is dropped whenever its weights are gone
        there = {id(t): t for entry in entries for t in entry.alive()}
        watch = self.watch(list(there.values()), layout=False)  # before they are read
        renewed = [entry.renew(sources, self.watch) for entry in entries if (sources := entry.alive())]
        self._watch = watch if all(renewed) else None
        return True

    def drop(self, key: Hashable) -> None:
        self._entries.pop(key, None)
        self._watch = None

    def tensors(self) -> list[torch.Tensor]:
        return [entry.tensor for entry in list(self._entries.values())]


@dataclass(frozen=True)
class CachedValue:
    """A value, and the places of the arguments that it is made of."""

    spots: tuple[int, ...]
    computation: Computation


class CachedValues:
    """The values of one graph, which may run with the weights of several layers. Whether the arguments that they are made of are as they were is
    asked of all of these at once."""

    def __init__(self, cached: Sequence[CachedValue], cache: WeightCache) -> None:
        self._values, self._cache = cached, cache
        self._spots = list(dict.fromkeys(spot for one in cached for spot in one.spots))
        # By the first weight's identity. A pair is written whole, for threads that run two layers at once.
        self._known: dict[int, tuple[_Watch, list[weakref.ref[_Entry]]]] = {}

    def __call__(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        tensors = [arguments[spot] for spot in self._spots]
        known = self._known.get(id(tensors[0]))
        if known is not None and known[0].same(tensors):
            alive = [entry for one in known[1] if (entry := one()) is not None]
            if len(alive) == len(self._values):
                return [entry.tensor for entry in alive]
        # Before they are read. With other sizes or strides another graph is called.
        watch = self._cache.watch(tensors, layout=False)
        entries = [self._cache.of([arguments[spot] for spot in one.spots], one.computation) for one in self._values]
        if len(self._known) >= MOST_LAYERS:
            self._known = {}
        self._known[id(tensors[0])] = watch, list(map(weakref.ref, entries))
        return [entry.tensor for entry in entries]


class _Watch:
    """Tensors, and whether any of them is another or was written to. Storages are told apart by identity, for an address is soon another's: weak
    references to them keep that one's own. layout: sizes and strides count, too."""

    def __init__(self, tensors: Sequence[torch.Tensor], counts: Sequence[Sequence[Count]], layout: bool) -> None:
        self._of, self._layout = [weakref.ref(t) for t in tensors], layout
        self._counts = list(dict.fromkeys(chain(*counts)))
        self._storages = [StorageWeakRef(t.untyped_storage()) for t in tensors]
        # Nobody would know that a batch norm wrote to a statistic, nor who writes to memory that is others', too.
        self._blind = not all(counts) or any(t.untyped_storage().nbytes() > t.nbytes for t in tensors)
        self._marks = self._now(tensors)

    def same(self, tensors: Sequence[torch.Tensor] | None = None) -> bool:
        """Whether nothing was written to the tensors; where some are given, whether they are the same objects, too."""
        if self._blind:
            return False
        mine = [one() for one in self._of]
        if tensors is not None and not (len(mine) == len(tensors) and all(map(is_, mine, tensors))):
            return False
        there = [t for t in mine if t is not None]
        if len(there) < len(mine):
            return False
        now = self._now(there)
        return now == self._marks and None not in now[-1]

    def _now(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The counts last."""
        return [
            step_count(),
            [t._version for t in tensors],
            [t.untyped_storage()._cdata for t in tensors],
            list(map(torch.Tensor.storage_offset, tensors)),
            [(t.shape, t.stride()) for t in tensors] if self._layout else None,
            [count.now() for count in self._counts],
        ]


class _Entry:
    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        computation: Computation,
        watch: Callable[[Sequence[torch.Tensor]], _Watch],
        gone: Callable[[object], None],
    ) -> None:
        self._of, self._computation = [weakref.ref(t, gone) for t in tensors], computation
        self._layouts = _layouts_of(tensors)
        self._watch = watch(tensors)  # before they are read: what is written meanwhile is computed again
        with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be written to outside of it
            self.tensor = computation.new(tensors)

    def alive(self) -> list[torch.Tensor]:
        """What it is made of; nothing where a part of that is gone."""
        tensors = [t for one in self._of if (t := one()) is not None]
        return tensors if len(tensors) == len(self._of) else []

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are it, and not others that came to lie where they were."""
        return all(one() is t for one, t in zip(self._of, tensors, strict=True))

    def renew(self, tensors: Sequence[torch.Tensor], watch: Callable[[Sequence[torch.Tensor]], _Watch]) -> bool:
        """Of the tensors that it is made of, where they may be others now; False where they have other sizes, and it has to be made anew."""
        if self._watch.same(tensors):
            return True
        if self._layouts != _layouts_of(tensors):
            return False
        seen = watch(tensors)  # before they are read
        with torch.inference_mode(False), torch.no_grad():
            self._computation.write(self.tensor, tensors)
        self._watch = seen
        return True


def _layouts_of(tensors: Sequence[torch.Tensor]) -> list[object]:
    return [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]


# How often optimizers of this process have stepped. Their fused kernels write to weights without raising version counters, so whoever keeps
# a copy of a weight asks here, too. Collectives (`torch.distributed.broadcast`), kernels of one's own and steps in graphs that others recorded
# are seen by neither.
_taken = 0
_counted = False


def step_count() -> int:
    """By optimizers of this process, since it was first asked."""
    global _counted
    if not _counted:
        _counted = True
        # Here, where compiling is near: disabling loads Dynamo, which takes as long as torch itself. Before a step, too: a hook of the user's
        # comes earlier than the one after it, and a step may fail after it has written.
        counted = torch.compiler.disable(_counted_step)
        register_optimizer_step_pre_hook(counted)
        register_optimizer_step_post_hook(counted)
    return _taken


def count_step() -> None:
    """By a graph that was replayed."""
    global _taken
    _taken += 1


def _counted_step(*_: object) -> None:
    count_step()
