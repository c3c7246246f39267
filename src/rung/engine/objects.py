"""Objects of a user's own, such as a cache of keys and values, as far as Python shows what they hold: attributes, in whatever lists,
dicts and further objects these lie."""

from __future__ import annotations

import contextlib
import enum
import types
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rung.engine.guards import NAMED, PLAIN

VALUES = (*PLAIN, *NAMED, complex, enum.Enum, torch.Size)
SIMPLE = frozenset(PLAIN)  # most are: looked up faster than asked for their classes
SEQUENCES, SETS = (list, tuple, deque), (set, frozenset)
MOST, DEEP = 1 << 14, 64  # values that are looked at before every call; objects in objects

Place = tuple[Any, Any]  # (place of what holds it, or the name of an input; attribute, index or key)


def unreadable(tensor: torch.Tensor, kind: str) -> str:
    """Why a graph on devices of that kind cannot read a tensor where it lies, or from a copy, in a few words; empty where it can. A tensor on
    the host is read when kernels are launched, and one with a gradient gets it itself."""
    if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
        return f"is a {type(tensor).__name__}"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "is sparse or nested"
    if not getattr(tensor, f"is_{kind}"):  # `device.type` makes a string each time
        return "lies in the host's memory"
    return "gets a gradient" if tensor.requires_grad and torch.is_grad_enabled() else ""


class Key(tuple[Hashable, ...]):
    """Hashed once: it is long, and looked up at every call."""

    def __init__(self, parts: Iterable[Hashable]) -> None:
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Content:
    """key: where each tensor lies and in which layout, and all else by its value; tensors: those, in that order; unseen: where something
    lies that Python does not show or a graph cannot read, and what that is; empty where all is seen; owners: the objects in those that were
    read; containers: the lists, dicts and the like; memory: where that of its tensors begins."""

    key: Key
    tensors: list[torch.Tensor]
    unseen: str = ""
    owners: Sequence[Any] = ()
    containers: Sequence[Any] = ()
    memory: frozenset[int] = frozenset()

    def difference(self, names: Sequence[str], objects: Sequence[Any], kind: str) -> str:
        """Where what these objects hold now is something else first; empty where it is not."""
        reader = _Reader(kind, places=[])
        reader.read(names, objects)
        assert reader.places is not None
        pairs = zip(self.key, reader.key, reader.places, strict=False)
        if (found := next((place for a, b, place in pairs if a != b), None)) is not None:
            return spelled(found)
        return "" if len(self.key) == len(reader.key) else spelled(reader.places[-1])


def content(names: Sequence[str], objects: Sequence[Any], kind: str) -> Content:
    """What objects hold, for graphs on devices of that kind. names: what an answer calls them."""
    reader = _Reader(kind)
    reader.read(names, objects)
    begins = frozenset(map(memory, reader.tensors))
    return Content(Key(reader.key), reader.tensors, reader.unseen, reader.owners, reader.containers, begins)


def memory(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins, which others may share."""
    where: int = tensor.untyped_storage().data_ptr()
    return where


def rebuilt(value: Any, known: dict[int, Any], depth: int = 0) -> Any:
    """The same in containers and objects of its own, and with the same tensors; of what is known by its `id`, what is known. What cannot be
    read, or lies too deep, is itself. The common containers by hand: this is done at every replay."""
    if id(value) in known:
        return known[id(value)]
    kind: Any = type(value)
    if kind in SIMPLE or isinstance(value, torch.Tensor) or is_value(kind) or depth == DEEP:
        return value
    depth += 1
    if kind is tuple:
        return tuple([rebuilt(one, known, depth) for one in value])
    if kind is list:  # known before it is filled: it may be in two places, or in itself
        some: list[Any] = []
        known[id(value)] = some
        some += [rebuilt(one, known, depth) for one in value]
        return some
    if kind is dict:
        table: dict[Any, Any] = {}
        known[id(value)] = table
        table.update({name: rebuilt(one, known, depth) for name, one in value.items()})
        return table
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[rebuilt(one, known, depth) for one in value])
    if kind in pytree.SUPPORTED_NODES:
        made = pytree.tree_map(lambda part: rebuilt(part, known, depth), value, is_leaf=lambda part: part is not value)
        return known.setdefault(id(value), made)
    slots = _slots(kind)
    if slots is None or isinstance(value, torch.nn.Module):
        return value
    try:
        attributes, slotted = _table(value), _slotted(value, slots)
    except Exception:  # whatever a class of the user's raises
        return value
    other = known[id(value)] = types.SimpleNamespace() if kind is types.SimpleNamespace else object.__new__(kind)
    if attributes:
        _table(other).update({name: rebuilt(held, known, depth) for name, held in attributes.items()})
    for name, held in slotted:
        object.__setattr__(other, name, rebuilt(held, known, depth))  # it may be frozen
    return other


def reached(values: Iterable[Any]) -> dict[int, Any]:
    """By their `id`, the containers and objects among values and in those, the nearest first, and not too many."""
    found: dict[int, Any] = {}
    ahead = list(values)
    for value in ahead:  # which grows on the way
        kind: Any = type(value)
        if id(value) in found or isinstance(value, (torch.Tensor, torch.nn.Module)) or is_value(kind):
            continue
        found[id(value)] = value
        if isinstance(value, (*SEQUENCES, dict)):
            parts: Any = value.values() if isinstance(value, dict) else value
        else:
            try:
                parts = [held for _, held in _attributes(value, _slots(kind) or ())]
            except Exception:  # whatever a class of the user's raises
                parts = ()
        if len(ahead) + len(parts) <= MOST:
            ahead += parts
    return found


def spelled(place: Place) -> str:
    """As it is written in Python."""
    holder, name = place
    if holder is None:
        return str(name)
    return f"{spelled(holder)}{f'.{name}' if isinstance(name, str) else f'[{name!r}]'}"


class _Unreadable(Exception):
    """Ends the reading: nothing is captured of such objects, and they may be huge."""


class _Reader:
    def __init__(self, kind: str, places: list[Place] | None = None) -> None:
        self.key: list[Hashable] = []
        self.tensors: list[torch.Tensor] = []
        self.unseen = ""
        self.owners: list[Any] = []
        self.containers: list[Any] = []
        self.places = places  # of each part of the key
        self._kind = kind
        self._seen: dict[int, int] = {}  # what was read already, and how much was by then
        self._depth = 0

    def read(self, names: Sequence[str], objects: Sequence[Any]) -> None:
        with contextlib.suppress(_Unreadable):
            self._read(zip(names, objects, strict=True), None)

    def _read(self, items: Iterable[tuple[Any, Any]], holder: Place | None) -> None:
        key, tensors, places = self.key, self.tensors, self.places
        for name, value in items:
            kind: Any = type(value)
            if kind in SIMPLE:
                key.append((kind, value.hex() if kind is float else value))
            elif isinstance(value, torch.Tensor):
                if why := unreadable(value, self._kind):
                    self._refuse((holder, name), why)
                try:
                    where = value.data_ptr()
                except RuntimeError:  # one of torch.func has none
                    self._refuse((holder, name), "has no memory of its own")
                tensors.append(value)
                views = value.is_conj(), value.is_neg()
                key.append((where, value.shape, value.stride(), value.dtype, value.requires_grad, *views))
            elif is_value(kind):
                key.append((kind, exact(value)))
            elif id(value) in self._seen:
                key.append(("again", self._seen[id(value)]))
            else:
                self._seen[id(value)] = len(key)
                self._inside(value, (holder, name))
                continue
            if places is not None:
                places.append((holder, name))

    def _inside(self, value: Any, place: Place) -> None:
        kind: Any = type(value)
        # form: beside its class, what of it is no part.
        form, parts, slots = self._contained(value, kind, place)
        if slots is None:
            self._refuse(place, f"is a {kind.__name__}, into which Python does not look")
        try:
            own = _attributes(value, slots)
        except Exception as error:  # whatever a class of the user's raises
            self._refuse(place, f"cannot be read ({type(error).__name__})")
        form += [name for name, _ in own]
        parts += own
        self._take(len(parts), place)
        self.key.append((kind, *form))
        if self.places is not None:
            self.places.append(place)
        self._depth += 1
        self._read(parts, place)
        self._depth -= 1

    def _take(self, more: int, place: Place) -> None:
        if len(self.key) + more > MOST or self._depth == DEEP:
            self._refuse(place, f"holds more than {MOST} values, or is more than {DEEP} deep")

    def _contained(self, value: Any, kind: Any, place: Place) -> tuple[list[Any], list[tuple[Any, Any]], Any]:
        """Of a container, its form and what is in it; of all, the slots of its class."""
        if not isinstance(value, (*SEQUENCES, *SETS, dict)):
            if self._depth:
                self.owners.append(value)
            return [], [], _slots(kind)
        self._take(len(value), place)  # before it is looked into
        self.containers.append(value)
        if isinstance(value, SEQUENCES):
            form = [len(value), value.maxlen if isinstance(value, deque) else None]
            return form, list(enumerate(value)), named_slots(kind)
        if not all(map(_is_key, value)):
            self._refuse(place, f"is a {kind.__name__} of other objects than plain values")
        return list(map(_exact_key, value)), list(value.items()) if isinstance(value, dict) else [], named_slots(kind)

    def _refuse(self, place: Place, why: str) -> NoReturn:
        self.unseen = f"{spelled(place)} {why}"
        self.key.append(why)
        if self.places is not None:
            self.places.append(place)
        raise _Unreadable


def _attributes(value: Any, slots: tuple[str, ...]) -> list[tuple[str, Any]]:
    own = list(_table(value).items())
    return own + _slotted(value, slots) if slots else own


def _table(value: Any) -> dict[str, Any]:
    """Of its attributes, and not of what a `__getattr__` of its class gives."""
    kind: Any = type(value)
    return object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}


def _slotted(value: Any, slots: tuple[str, ...]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in slots:
        with contextlib.suppress(AttributeError):  # as one that is unset raises
            found.append((name, object.__getattribute__(value, name)))
    return found


@cache
def is_value(kind: Any) -> bool:
    """Whether instances of a class are plain values. One with attributes, as a subclass of int may have, is none."""
    if kind in VALUES or issubclass(kind, (*NAMED, enum.Enum)):
        return True
    return issubclass(kind, VALUES) and not kind.__dictoffset__ and not named_slots(kind)


def is_plain(value: Any) -> bool:
    kind: Any = type(value)
    return is_value(kind)


def exact(value: Any) -> Any:
    """Of a plain value, what is equal where it is the same: 0.0 equals -0.0."""
    if isinstance(value, enum.Enum):
        return value
    if isinstance(value, float):
        return float.hex(value)
    return (value.real.hex(), value.imag.hex()) if isinstance(value, complex) else value


def _is_key(value: Any) -> bool:
    kind: Any = type(value)
    return all(map(_is_key, value)) if kind is tuple else is_value(kind)


def _exact_key(value: Any) -> Hashable:
    """With its class: True equals 1."""
    kind: Any = type(value)
    return (kind, tuple(map(_exact_key, value)) if kind is tuple else exact(value))


@cache
def named_slots(kind: Any) -> tuple[str, ...]:
    """Attributes of a class's instances that are in no `__dict__`."""
    if kind is types.SimpleNamespace:  # which has its `__dict__` in one
        return ()
    tables = [vars(parent) for parent in kind.__mro__[:-1]]
    return tuple(n for table in tables for n, m in table.items() if isinstance(m, types.MemberDescriptorType))


@cache
def _slots(kind: Any) -> tuple[str, ...] | None:
    """The names of a class's slots; None where instances have state that is not in attributes, as those of C have, or the class itself holds
    tensors."""
    if kind is types.SimpleNamespace:
        return ()
    tables = [vars(parent) for parent in kind.__mro__[:-1]]
    if hasattr(kind, "__del__") or any(isinstance(value, torch.Tensor) for table in tables for value in table.values()):
        return None
    try:
        object.__new__(kind)  # Python refuses where this would leave out what a class of C sets up
    except TypeError:
        return None
    names = named_slots(kind)
    return names if names or kind.__dictoffset__ else None
