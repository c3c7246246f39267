"""Guards on a model: what a recorded graph depends on, where its tensors lie and what its modules' Python would read.

A replay runs no Python and reads the addresses that it was recorded with. `model.eval()`, an adapter that is switched off,
weights that are loaded with `assign=True` or a module in the place of another would go unseen by it.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.hooks import RemovableHandle

from rung.engine import dynamo
from rung.workload.copy_model import has_gradient_hooks

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
NAMED = (type, types.FunctionType, types.BuiltinFunctionType)  # told apart by identity: an activation, a class
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
INNER = ("_modules", "_parameters", "_buffers", *HOOKS)
# A module has these from nn.Module, and its forward reads none of them: what saves and loads it, and details of hooks in HOOKS.
UNREAD = (
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"),
    *("_is_full_backward_hook", "_non_persistent_buffers_set"),
)
MOST = 16  # states that are told apart
NEEDS_GRADIENT = attrgetter("requires_grad")
LAYOUT = (torch.Tensor.data_ptr, torch.Tensor.stride, torch.Tensor.numel)
DEEP = 3  # lists in lists that are looked into
KNOWN = ("torch.", "transformers.", "peft.")  # whose hooks compute, or do nothing unless they are asked


class ModelGuards:
    """A model as far as replays depend on it: its modules with their plain attributes, functions, and lists, sets and tables of such; of
    other attributes the type; its parameters and buffers, and tensors that are attributes. What changes inside of other objects is not
    seen.

    What the model's own forward changes (a counter, a tensor that it sets) is no change: `accept` is told after it ran.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._states: list[tuple[list[Any], str]] = []
        self._number: int | None = 0
        self._scan()
        self._addresses = self._addresses_now()
        self._states.append((_kept(self._now()), self._found))
        self._quick = {0: self._quick_check()}  # by the number of the state

    @property
    def hooked(self) -> str:
        """The first module with a hook of the user's, whose Python no replay would run; empty where there is none."""
        return self._found if self._number is None else self._states[self._number][1]

    @property
    def state(self) -> int | None:
        """Which of its states the model was in when it was last asked."""
        return self._number

    def in_place(self) -> bool:
        """Whether the tensors of that state still lie where they lay: their memory may be read. Nothing else is asked."""
        return self._number is not None and self._quick[self._number].in_place()

    def check(self) -> tuple[int | None, bool]:
        """(which of its states the model is in, whether tensors have moved since the last look). States are numbered as they are
        first seen, anew where tensors moved; once there are more than the most that are told apart, it is None for good."""
        if self._number is None:
            return None, False
        for known in sorted(self._quick, key=lambda k: k != self._number):
            if self._quick[known].holds():
                self._number = known
                return known, False
        number, moved = self._read()
        if moved:
            self._quick.clear()
        if number is not None:
            self._quick[number] = self._quick_check()
        return number, moved

    def _read(self) -> tuple[int | None, bool]:
        assert self._number is not None
        moved = False
        # Where it is known that something is another, what is read may be elsewhere.
        if not self._quick[self._number].known:
            moved = self._addresses_now() != self._addresses
            if not moved and self._matched():
                return self._number, False
        self._scan()
        before, self._addresses = self._addresses, self._addresses_now()
        moved |= before != self._addresses
        if moved:
            self._states.clear()
        if not self._matched():
            self._number = len(self._states) if len(self._states) < MOST else None
            self._states.append((_kept(self._now()), self._found))
        return self._number, moved

    def accept(self) -> None:
        """What a run of the model itself left is how it is given."""
        if self._number is not None:
            self._scan()
            self._addresses = self._addresses_now()
            self._states[self._number] = _kept(self._now()), self._found
            self._quick = {self._number: self._quick_check()}

    def _quick_check(self) -> _QuickCheck:
        attributes = (table.get(name) for table, name in self._attributes)
        # Each once: torch's own check holds two that are one for changed, and weights may be tied.
        tensors = {id(t): t for t in (*self._tensors(), *attributes) if isinstance(t, torch.Tensor)}
        return _QuickCheck(self._modules, self._plain, list(tensors.values()), bool(self._scripted))

    def _matched(self) -> bool:
        try:
            now = self._now()
            order = sorted(range(len(self._states)), key=lambda k: k != self._number)
            with Themselves():
                self._number = next(k for k in order if self._states[k][0] == now)
        except (StopIteration, KeyError, RuntimeError, ValueError):
            # another state, an attribute that is gone, a number that became an array
            return False
        return True

    def _scan(self) -> None:
        """Where to read: once, because it is read before every replay."""
        modules = dict(self._model.named_modules())
        # A scripted module keeps its attributes where Python does not see them.
        self._scripted = [m for m in modules.values() if isinstance(m, torch.jit.ScriptModule)]
        modules = {name: m for name, m in modules.items() if not isinstance(m, torch.jit.ScriptModule)}
        self._modules = list(modules.values())
        tables = [vars(m) for m in self._modules]
        self._tables = tables
        self._sized = [*tables, *(t[name] for t in tables for name in INNER)]
        self._plain: list[tuple[dict[str, Any], list[str]]] = []
        self._others: list[tuple[dict[str, Any], str]] = []
        for t in tables:
            names = [name for name in t if name not in INNER and name not in UNREAD]
            self._plain.append((t, [name for name in names if _plain(t[name])]))
            if len(self._plain[-1][1]) < len(names):
                self._others += [(t, name) for name in names if name not in self._plain[-1][1]]
        children = [(t["_modules"], list(t["_modules"])) for t in tables]
        self._readers = [(itemgetter(*keys, keys[0]), table) for table, keys in (*self._plain, *children) if keys]
        self._attributes = [(t, k) for t, k in self._others if isinstance(t[k], torch.Tensor)]
        self._holders = [(t[kind], k) for t in tables for kind in ("_parameters", "_buffers") for k in t[kind]]
        self._found = next((name or "the model" for name, m in modules.items() if any(_foreign(m))), "")

    def _now(self) -> list[Any]:
        return [
            *map(len, self._sized),
            *(id(table[name]) for table in self._tables for name in INNER),
            *(tuple(table["_modules"]) for table in self._tables),
            *((*table[name], *table[name].values()) for table in self._tables for name in HOOKS),
            *map(type, self._modules),
            *(read(table) for read, table in self._readers),
            *(type(table.get(name)) for table, name in self._others),
            *(m.training for m in self._scripted),
            *(t is not None and (t.requires_grad, *_hooked(t)) for t in self._tensors()),
        ]

    def _addresses_now(self) -> list[Any]:
        attributes = (table.get(name) for table, name in self._attributes)
        return [_where(tensor) for tensor in (*self._tensors(), *attributes)]

    def _tensors(self) -> list[torch.Tensor | None]:
        inside = [t for m in self._scripted for t in (*m.parameters(False), *m.buffers(False))]
        return [*(table.get(name) for table, name in self._holders), *inside]


class _QuickCheck:
    """A model as it was left: whether it still is, at a small part of the cost of reading it anew. It is asked before every replay, while
    the GPU waits.

    What is one object is taken as equal, and all else as changed. So it may see a change where there is none, and never the other way.
    """

    def __init__(
        self,
        modules: list[nn.Module],
        plain: list[tuple[dict[str, Any], list[str]]],
        tensors: list[torch.Tensor],
        scripted: bool,
    ) -> None:
        """plain: of each module's table, the names of what is compared by what it holds."""
        # What a hook on a tensor is attached to stays one object: then nothing is known without reading it all.
        self.known = not (scripted or any(map(has_gradient_hooks, tensors)))
        if not self.known:
            return
        tables = [vars(m) for m in modules]
        mutable = [(table, name, table[name]) for table, names in plain for name in names if _mutable(table[name])]
        held = [(table, name, table[name]) for table in tables for name in INNER]
        inner = [table for _, _, table in held]
        self._empty = [value for _, _, value in (*held, *mutable) if not value]
        # An equal one in the place of such a table would be changed unseen.
        self._held = [*held, *((table, name, value) for table, name, value in mutable if not value)]
        self._filled = [(table, name, copy.deepcopy(value)) for table, name, value in mutable if value]
        self._modules, self._tensors = modules, tensors
        self._types = list(map(type, modules))
        self._tables = [table for table in (*tables, *inner) if table]
        self._then = list(map(dict, self._tables))
        self._children = [table["_modules"] for table in tables if table["_modules"]]
        self._order = list(map(list, self._children))
        self._versions = dynamo.dict_versions(self._tables)
        self._strided = [t for t in tensors if _has_address(t)]
        self._others = [t for t in tensors if not _has_address(t)]
        self._addresses = self._addresses_now()
        self._trained = list(map(NEEDS_GRADIENT, self._tensors))
        self._others_trained = list(map(NEEDS_GRADIENT, self._others))
        self._alike = dynamo.tensor_guards(self._strided)
        self._handles = RemovableHandle.next_id

    def holds(self) -> bool:
        if not self.known or any(self._empty):
            return False
        if self._handles != RemovableHandle.next_id:  # hooks were attached since, to something in this process
            if any(map(has_gradient_hooks, self._tensors)):
                return False
            self._handles = RemovableHandle.next_id
        return list(map(type, self._modules)) == self._types and self._same_objects() and self._same_tensors()

    def in_place(self) -> bool:
        """Whether every tensor, all of which are held here, has its memory still. False where that is not known."""
        if not self.known or self._others:
            return False
        try:
            return list(map(torch.Tensor.data_ptr, self._strided)) == self._addresses[0]
        except RuntimeError:
            return False

    def _same_objects(self) -> bool:
        """Whether every table holds the objects that it held. A table that nobody wrote to does."""
        written = self._versions is None or dynamo.dict_versions(self._tables) != self._versions
        try:
            with Themselves():
                if written and not (self._tables == self._then and list(map(list, self._children)) == self._order):
                    return False
                if written and not all(table[name] is held for table, name, held in self._held):
                    return False
                same = all(table[name] == then for table, name, then in self._filled)
        except Exception:  # of another object, whatever its `__eq__` raises
            return False
        if written and same:  # it was switched, and back
            self._versions = dynamo.dict_versions(self._tables)
        return same

    def _same_tensors(self) -> bool:
        """Whether the tensors lie where they lay, with the same shapes, and get gradients as they did."""
        try:
            if list(map(torch.Tensor.data_ptr, self._strided)) != self._addresses[0]:
                return False
            if self._alike is not None and self._alike(*self._strided):
                return list(map(NEEDS_GRADIENT, self._others)) == self._others_trained
            if self._addresses_now() != self._addresses:
                return False
        except RuntimeError:  # one was exchanged for a tensor that has no address
            return False
        same = list(map(NEEDS_GRADIENT, self._tensors)) == self._trained
        if same:  # under inference mode, say, they look otherwise
            self._alike = dynamo.tensor_guards(self._strided)
        return same

    def _addresses_now(self) -> list[list[Any]]:
        return [list(map(read, self._strided)) for read in LAYOUT]


class Themselves(TorchFunctionMode):
    """Two tensors are equal where they are one, whatever they hold; nobody waits for the GPU to say so."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> bool:
        return False


def put_elsewhere(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    """Whether a run put other numbers in a buffer's place, in another tensor: an average kept up by `self.mean = ...` is read by a replay
    where it lay, and never where the replay leaves it. before: the buffers before it ran. Numbers that are set anew, equal ones, are none."""
    now = dict(model.named_buffers())
    return any(now.get(name, t) is not t and not _equal(now[name], t) for name, t in before.items())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = all(getattr(one, name) == getattr(other, name) for name in ("shape", "dtype", "device", "layout"))
    return alike and one.layout is torch.strided and torch.equal(one, other)


def _hooked(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether hooks see its gradient: as it comes, and once it is added to `.grad`."""
    return bool(tensor._backward_hooks), bool(tensor._post_accumulate_grad_hooks)


def _where(tensor: Any) -> tuple[Any, ...] | int | None:
    """An address, and in which strides so many elements lie there; a wrapped or sparse tensor has none of its own, and what is in the
    place of a tensor has none."""
    if not isinstance(tensor, torch.Tensor):
        return None
    return tuple(read(tensor) for read in LAYOUT) if _has_address(tensor) else id(tensor)


def _has_address(tensor: torch.Tensor) -> bool:
    """Whether it has an address of its own."""
    plain = type(tensor) in (nn.Parameter, torch.Tensor) or not is_traceable_wrapper_subclass(tensor)
    return plain and tensor.layout is torch.strided


def _mutable(value: Any) -> bool:
    """Whether a plain value may change in place."""
    return isinstance(value, (list, set, dict)) or (isinstance(value, tuple) and any(map(_mutable, value)))


def _plain(value: Any, deep: int = DEEP) -> bool:
    if type(value) in PLAIN:  # most are, and a model has tens of thousands
        return True
    if isinstance(value, dict):
        return deep > 0 and all(_plain(v, deep - 1) for pair in value.items() for v in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return deep > 0 and all(_plain(v, deep - 1) for v in value)
    return isinstance(value, (*PLAIN, *NAMED))


def _kept(state: list[Any]) -> list[Any]:
    """A state that stays as it is: of lists and tables that hold plain values, copies."""
    return [tuple(map(_copied, x)) if type(x) is tuple else x for x in state]


def _copied(value: Any) -> Any:
    if not isinstance(value, (list, tuple, set, dict)):
        return value
    return copy.deepcopy(value) if value else copy.copy(value)  # a module has ten that are empty


def _foreign(module: nn.Module) -> Iterator[bool]:
    """Of every hook of a module, whether it is the user's."""
    for kind in HOOKS:
        for hook in vars(module)[kind].values():
            yield not f"{getattr(hook, '__module__', '')}.".startswith(KNOWN)
