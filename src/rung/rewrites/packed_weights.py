"""Weights that are read as one: in inference they are laid out next to one another, once, and a view covers them all.

Concatenating in the graph reads and writes every weight in every call, which costs more than the fused product saves
where few tokens are multiplied. Here the parameters keep their identity and values, but move into one piece of memory:
no second copy is held, and a later in-place change of a weight is seen by the view, also when a captured graph is
replayed. Weights that cannot be moved (views, shared storage, subclasses, anything that needs a gradient) are
concatenated in the graph as in training.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from rung.rewrites.graph.captured import add_weight, is_weight
from rung.rewrites.statistics import Statistics

ALIGNED = 16  # bytes
PLACEMENT, MEMBERS = "rung_home", "rung_members"
_PACKING = threading.Lock()  # two threads that moved the same weights at once would leave them apart
_buffers: list[weakref.ref[torch.Tensor]] = []  # in which weights were packed


@dataclass(frozen=True)
class Placement:
    """Where a weight lies: its storage's address and size in bytes, its first byte in it and its own size. dense: in the order of its
    dimensions, so that it may be moved; parameter: it counts its versions; writes_seen: whatever writes to it shows in
    these, or in a count of batches; shared: another weight of the graph has that storage."""

    storage: int
    storage_bytes: int
    offset: int
    size: int
    dense: bool = True
    parameter: bool = False
    writes_seen: bool = False
    shared: bool = False

    @property
    def fills_storage(self) -> bool:
        return self.offset == 0 and self.size == self.storage_bytes


def note_placements(gm: fx.GraphModule, example_inputs: Sequence[Any], statistics: Statistics) -> None:
    """Marks the placeholders whose tensors may be moved or copied, before the passes look at the graph."""
    if any(getattr(node.target, "__name__", "") == "_set_grad_enabled" for node in gm.graph.nodes):
        return
    inputs = zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False)
    weights = [(node, tensor) for node, tensor in inputs if _is_movable(tensor) and is_weight(node)]
    storages = Counter(tensor.untyped_storage().data_ptr() for _, tensor in weights)
    for node, tensor in weights:
        storage = tensor.untyped_storage()
        start = tensor.storage_offset() * tensor.element_size()
        versioned = not tensor.is_inference()
        parameter = isinstance(tensor, torch.nn.Parameter) and versioned
        # Batch norm writes its statistics, which are buffers of floating-point numbers, without raising their versions.
        seen = versioned and (parameter or not tensor.is_floating_point() or bool(statistics.counts(tensor)))
        shared = storages[storage.data_ptr()] > 1
        node.meta[PLACEMENT] = Placement(
            storage.data_ptr(), storage.nbytes(), start, tensor.nbytes, tensor.is_contiguous(), parameter, seen, shared
        )


def _is_movable(tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or isinstance(tensor, FakeTensor):
        return False
    needs_gradient = tensor.requires_grad and torch.is_grad_enabled()
    return tensor.layout == torch.strided and not needs_gradient and not tensor.is_meta


def packed_input(graph: fx.Graph, members: Sequence[fx.Node]) -> fx.Node | None:
    """A new input of the graph that stands for the members below one another; None where they must be copied."""
    placements = [member.meta.get(PLACEMENT) for member in members]
    if not all(isinstance(placement, Placement) and placement.dense for placement in placements):
        return None
    wanted = tuple(member.name for member in members)
    inputs = graph.find_nodes(op="placeholder")
    for node in inputs:
        theirs = node.meta.get(MEMBERS, ())
        if theirs == wanted:
            return node
        if set(theirs) & set(wanted):
            return None  # a weight can lie in one place only
    if any(placement.size % ALIGNED for placement in placements):
        return None  # the compiler takes for granted that weights begin where wide loads can
    if len(set(wanted)) < len(wanted) or not (
        all(placement.fills_storage for placement in placements) or _adjacent(placements)
    ):
        return None
    values = [member.meta["example_value"].detach() for member in members]
    return add_weight(graph, torch.cat(values), {MEMBERS: wanted})


def _adjacent(placements: Sequence[Placement]) -> bool:
    pairs = itertools.pairwise(placements)
    return all(a.storage == b.storage and a.offset + a.size == b.offset for a, b in pairs)


def on_collected(method: Callable[..., None], *given: Any) -> Callable[[object], None]:
    """Of a weak reference to a tensor: calls the method once that is gone, and does not keep the method's object."""
    weak = weakref.WeakMethod(method)

    def call(gone: object) -> None:
        if (alive := weak()) is not None:
            alive(*given)

    return call


@dataclass(frozen=True)
class _Packed:
    """Weights that lie together: a view of all of them, and the tensor that has their memory, as long as they may be there."""

    view: torch.Tensor
    buffer: torch.Tensor | None
    of: list[weakref.ref[torch.Tensor]]

    def holds(self, addresses: Sequence[int]) -> bool:
        tensors = [one() for one in self.of]
        return all(t is not None and t.data_ptr() == at for t, at in zip(tensors, addresses, strict=True))


class PackedWeights:
    """The tensors of one packed input, found among the arguments of every call."""

    def __init__(self, spots: Sequence[int]) -> None:
        self.spots = tuple(spots)
        self.copied = False  # in the last call that asked: weights that may not be moved
        self._packed: dict[tuple[int, ...], _Packed] = {}  # by where the weights lie, of each layer with the same code
        self._moved: list[weakref.ref[torch.Tensor]] = []

    def undo(self) -> None:
        """Gives every weight that was moved memory of its own again."""
        for tensor in (moved() for moved in self._moved):
            if tensor is not None and (_buffer_around([tensor]) is not None or not _fills_storage(tensor)):
                with torch.inference_mode(tensor.is_inference()):
                    tensor.data = tensor.detach().clone()
        self._moved.clear()
        self._packed = {}

    def __call__(self, arguments: Sequence[Any]) -> torch.Tensor:
        tensors = [arguments[spot] for spot in self.spots]
        packed = self._packed.get(tuple(t.data_ptr() for t in tensors))
        if packed is None:
            # The first call, another layer of the same code, or weights that were moved (`.to()`, a new state dict).
            with _PACKING:
                adjacent = _are_adjacent(tensors)
                self.copied = not adjacent and not _may_move(tensors)
                if self.copied:
                    with torch.no_grad():
                        return torch.cat([t.detach() for t in tensors])
                buffer = _buffer_around(tensors) if adjacent else self._move(tensors)
                gone = on_collected(self.drop_stale)
                packed = _Packed(_view(tensors, buffer), buffer, [weakref.ref(t, gone) for t in tensors])
                self.drop_stale()
                self._packed = {**self._packed, tuple(t.data_ptr() for t in tensors): packed}
        return packed.view

    def drop_stale(self) -> None:
        """Of the memory of weights that are elsewhere now, or gone."""
        self._packed = {addresses: one for addresses, one in self._packed.items() if one.holds(addresses)}

    def _move(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor that has the memory of all of them from now on."""
        # Memory of their own kind: tensors that get memory made in inference mode could never be trained again, and
        # inference tensors that get any other have no views.
        with torch.inference_mode(tensors[0].is_inference()), torch.no_grad():
            buffer = torch.cat([t.detach() for t in tensors])
            for tensor, part in zip(tensors, buffer.split([len(t) for t in tensors]), strict=True):
                tensor.data = _with_own_storage(part)
        _buffers[:] = [one for one in _buffers if one() is not None] + [weakref.ref(buffer)]
        self._moved += [weakref.ref(t) for t in tensors]
        return buffer


def _with_own_storage(part: torch.Tensor) -> torch.Tensor:
    """The same memory, which stays as long as this does. What saves models takes tensors of one storage for one tensor, and drops all but one."""
    try:
        own = torch.from_dlpack(part)
    except (BufferError, RuntimeError):  # a dtype or a device that DLPack does not know
        return part
    return own.as_strided(part.size(), part.stride())  # DLPack forgets those of dimensions of 1


def _buffer_around(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The buffer in which weights were packed that has all of these. As long as it is there, what lies in its memory is a part of it."""
    begin, end, device = tensors[0].data_ptr(), tensors[-1].data_ptr() + tensors[-1].nbytes, tensors[0].device
    for one in _buffers:
        buffer = one()
        if (
            buffer is not None
            and buffer.device == device
            and buffer.data_ptr() <= begin
            and end <= buffer.data_ptr() + buffer.nbytes
        ):
            return buffer
    return None


def _view(tensors: Sequence[torch.Tensor], buffer: torch.Tensor | None) -> torch.Tensor:
    """Of all of them; buffer: the tensor around them, None where they lay together as they came, in one storage."""
    first = tensors[0].detach()
    size = (sum(len(t) for t in tensors), *first.shape[1:])
    if buffer is None:
        return first.as_strided(size, first.stride())
    return buffer.as_strided(size, first.stride(), (first.data_ptr() - buffer.data_ptr()) // buffer.element_size())


def _may_move(tensors: Sequence[torch.Tensor]) -> bool:
    return all(_is_unshared(t) for t in tensors) and len({t.is_inference() for t in tensors}) == 1


def _is_unshared(tensor: torch.Tensor) -> bool:
    """Nothing else lies in its memory, nobody else has it, and no graph that is being captured has its address. Those with which it was laid
    together are read as one by some graph, which may be recorded."""
    capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return not capturing and _fills_storage(tensor) and _buffer_around([tensor]) is None and not shares_storage(tensor)


def _fills_storage(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes)


def _are_adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    storages = {t.untyped_storage().data_ptr() for t in tensors}
    next_to = all(a.data_ptr() + a.nbytes == b.data_ptr() for a, b in itertools.pairwise(tensors))
    return (
        next_to
        and all(t.is_contiguous() for t in tensors)
        and (len(storages) == 1 or _buffer_around(tensors) is not None)
    )


def shares_storage(tensor: torch.Tensor) -> bool:
    """Whether others write to this memory or read it: a state dict that is kept, a parameter with the same `.data`, another process.
    Where that cannot be told, it may be so."""
    shared = tensor.device.type == "cpu" and tensor.is_shared()  # of a GPU's memory it is always said
    if shared or not hasattr(torch._C, "_storage_Use_Count"):  # builds for CPUs have it since torch 2.8
        return True
    return _storage_uses(tensor) > _storage_uses(torch.empty(0))


def _storage_uses(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
