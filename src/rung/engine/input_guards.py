"""Guards on a call: its inputs but for their numbers, and the modes (autocast, gradients) that it is made in.

A replay reads copies of the inputs, to which every call writes first. What Python or the host reads is in the graph as it was when it
was recorded: an object's attributes, a number that lies in the host's memory. Tensors in objects, such as a cache of keys and values, are
not copied: a graph reads and writes them where they lie.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Hashable, Sequence
from operator import is_
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.contents import Contents
from rung.engine.objects import Content, Key, exact, is_plain, memory, unreadable
from rung.hardware.device import matmul_precision_name
from rung.hardware.torch_versions import tree_key

NOTHING = Content(Key(()), [])
NOT_CAPTURED = "such calls are not captured"


class Inputs:
    """What a call is given: tensors that a graph reads copies of, plain values, and objects of the caller's own, whose tensors it reads and
    writes where they lie.

    held: tensors that are not copied, those in objects and inputs that share memory with one; copied: the others, each once; unseen: why no
    graph may be recorded of such a call, empty where one may; form: its structure, shapes and plain values; sort: of a call with objects, its
    structure and classes alone; key: what has to be equal where a graph is replayed, the form and what objects hold.
    """

    form: Hashable = ()
    sort: Hashable = ()
    key: tuple[Hashable, ...]

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kind: str,
        contents: Contents | None = None,
        failed: Container[Hashable] = (),
    ) -> None:
        """kind: of the devices that graphs are for; contents: what is known of objects; failed: forms and sorts of calls that are not
        captured, so that their objects are not read."""
        self.args, self.kwargs, self._kind = args, kwargs, kind
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        given = [*args, *kwargs.values()]
        # What a call may change of its inputs beside their tensors lies in objects, and in containers of the caller's.
        self.flat = len(given) == len(self.leaves) and all(map(is_, given, self.leaves))
        self.objects = [leaf for leaf in self.leaves if not (isinstance(leaf, torch.Tensor) or is_plain(leaf))]
        self.content, self.held, self.key = NOTHING, NOTHING.tensors, ()
        self.copied = list({id(leaf): leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)}.values())
        self.unseen = next((f"an input {why}" for t in self.copied if (why := unreadable(t, kind))), "")
        if self.unseen:
            return
        self.form = tree_key(self.spec), signature(self.leaves)
        if self.objects:
            # Shapes are no part of it: a mask grows by one with every token. What gets a gradient is unreadable with gradients alone.
            self.sort = tree_key(self.spec), tuple(map(type, self.leaves)), torch.is_grad_enabled()
            if self.form in failed or self.sort in failed:
                self.unseen = NOT_CAPTURED
                return
            self.content = (contents or Contents(kind)).read(self._names(), self.objects)
            self.unseen = self.content.unseen
        places: tuple[Hashable, ...] = ()
        if self.content.tensors and not self.unseen:
            try:
                begins = list(map(memory, self.copied))
            except RuntimeError:  # one of torch.func has none
                self.unseen, self.sort = "an input has no memory of its own", ()
                return
            shared = [(k, t) for k, t in enumerate(self.copied) if begins[k] in self.content.memory]
            self.held = [*self.content.tensors, *(t for _, t in shared)]
            self.copied = [t for k, t in enumerate(self.copied) if begins[k] not in self.content.memory]
            places = tuple((k, t.data_ptr(), t.requires_grad, t.is_conj(), t.is_neg()) for k, t in shared)
        self.key = self.form, self.content.key, places

    def with_tensors(self, others: list[torch.Tensor]) -> Inputs:
        """The call with others in the place of the tensors that are copied; itself, in the caller's containers, where they are the same."""
        if all(map(is_, others, self.copied)):
            return self
        made = {id(own): other for own, other in zip(self.copied, others, strict=True)}
        call = copy.copy(self)
        call.leaves, call.copied = [made.get(id(leaf), leaf) for leaf in self.leaves], others
        call.args, call.kwargs = pytree.tree_unflatten(call.leaves, self.spec)
        return call

    def released(self) -> Inputs:
        """Itself, without the tensors that objects hold: an uncaptured call may put others in their place, as a cache that grows does, and
        what it drops is freed at once."""
        self.content, self.held = Content(self.content.key, []), []
        return self

    def changed(self) -> str:
        """What a call has put somewhere else since its inputs were read: where in an object it changed anything but numbers in tensors, or that
        it put something into a container; empty where it did not. What is only taken out of a container, as labels are, is nothing."""
        if not self.flat:
            now = pytree.tree_leaves((self.args, self.kwargs))
            if len(now) > len(self.leaves) or {*map(id, now)} - {*map(id, self.leaves)}:
                return "a list or a dict among the inputs"
        return self.content.difference(self._names(), self.objects, self._kind) if self.objects else ""

    def grows(self) -> bool:
        """Whether containers are among the inputs that programs put something into: lists, and classes that torch's pytree was told of. In dicts
        and tuples a batch comes."""
        return not all(map(_stays, (*self.args, *self.kwargs.values())))

    def _names(self) -> list[str]:
        named = {
            id(v): name for name, v in [*((f"input {k}", v) for k, v in enumerate(self.args)), *self.kwargs.items()]
        }
        return [named.get(id(one), f"a {type(one).__name__}") for one in self.objects]


def _stays(value: Any) -> bool:
    """Whether it is no container, or a dict or a tuple of what is none."""
    if type(value) is dict:
        return all(map(_stays, value.values()))
    if isinstance(value, tuple):
        return all(map(_stays, value))
    return type(value) not in pytree.SUPPORTED_NODES


def signature(leaves: Sequence[Any]) -> Hashable:
    """Of tensors, plain values and objects, what has to be equal where a graph is replayed, but for what is in the objects; which of them are
    one, too."""
    first: dict[int, int] = {}
    return tuple(
        (t.shape, t.dtype, t.stride(), first.setdefault(id(t), k))
        if isinstance(t, torch.Tensor)
        else (type(t), exact(t) if is_plain(t) else first.setdefault(id(t), k))
        for k, t in enumerate(leaves)
    )


def modes() -> Hashable:
    """Whether a call is made in inference mode and with gradients, under which autocast, where it is under any, and with which of torch's settings that
    decide what kernels are launched."""
    autocasts = (
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cuda", "cpu")
    )
    cuda = torch.backends.cuda
    attention = (
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
    )  # fmt: skip
    settings = matmul_precision_name(), torch.are_deterministic_algorithms_enabled(), attention
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), *autocasts, settings


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is written to again, in inference mode or outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()


def as_copied(leaves: Sequence[Any]) -> list[Any]:
    """The inputs as their copies are: what is compiled in the calls before capture is then what runs on those."""
    made = {id(leaf): laid_as_copied(leaf) for leaf in leaves}
    return [made[id(leaf)] for leaf in leaves]


def laid_as_copied(leaf: Any) -> Any:
    """A tensor of the kind, and with the strides, that a copy of it has: a slice, or a row that is expanded, is copied, and so is
    what was made in inference mode. For others Dynamo would compile anew."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.is_inference() or torch.empty_like(leaf, device="meta").stride() != leaf.stride():
        return copied(leaf)
    return leaf.detach() if leaf.requires_grad or isinstance(leaf, torch.nn.Parameter) else leaf
