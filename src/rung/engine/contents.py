"""What the objects of calls hold, read anew only where that may be something else."""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from rung.engine import dynamo
from rung.engine.objects import Content, content, named_slots

MOST = 64  # of which it is known what they held


class Contents:
    """A cache for 32 layers holds hundreds of values, and reading them takes as long as a small model. What is the same object needs no
    reading. Nothing here keeps an object, or what it holds, alive."""

    def __init__(self, kind: str) -> None:
        """kind: of the devices that graphs are for."""
        self._kind = kind
        self._known: dict[tuple[Hashable, ...], _Known] = {}

    def read(self, names: Sequence[str], objects: Sequence[Any]) -> Content:
        """names: what an answer calls the objects."""
        # What gets a gradient can be read where none is taken.
        place = torch.is_grad_enabled(), *map(id, objects)
        known = self._known.get(place)
        if known is not None and (held := known.content(objects)) is not None:
            return held
        self._known.pop(place, None)
        found = content(names, objects, self._kind)
        if _goes_with(found, objects):
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[place] = _Known(found, objects, partial(self._known.pop, place, None))
        return found


class _Known:
    """What objects held, for as long as they live. Kept alive of that are plain values alone. All else is known by its `id`. Another list or
    object in the same place of memory that holds the same is as good; of tensors there are weak references."""

    def __init__(self, found: Content, objects: Sequence[Any], gone: Callable[[], Any]) -> None:
        self._key, self._memory = found.key, found.memory
        self._objects = [weakref.ref(one, lambda _: gone()) for one in objects]
        owned = {**{id(one): True for one in (*objects, *found.owners)}, **{id(one): False for one in found.containers}}
        stepped: set[int] = set()
        # What has parts of its own: where it stands among all parts, its class, and whether the parts are its attributes.
        self._steps: list[tuple[int, type, bool]] = []
        tensors: dict[int, int] = {}  # by its id, where one stands; torch's check holds two that are one for changed
        self._plain: list[Any] = []  # so that no other value gets its `id`
        parts = list(objects)
        for k, part in enumerate(parts):  # which grow on the way
            if isinstance(part, torch.Tensor):
                tensors.setdefault(id(part), k)
            elif (owner := owned.get(id(part))) is None:
                self._plain.append(part)
            elif id(part) not in stepped:
                stepped.add(id(part))
                self._steps.append((k, type(part), owner))
                parts += _parts(part, owner)
        self._ids = list(map(id, parts))
        self._at = {id(t): tensors[id(t)] for t in found.tensors}
        self._all = [tensors[id(t)] for t in found.tensors]
        own = [parts[k] for k in self._at.values()]
        self._tensors = list(map(weakref.ref, own))
        self._addresses = list(map(torch.Tensor.data_ptr, own))
        self._alike = dynamo.tensor_guards(own)

    def content(self, objects: Sequence[Any]) -> Content | None:
        """What they hold, where these are the objects, and hold the very values and tensors, in the same places, that they held."""
        if self._alike is None or any(ref() is not one for ref, one in zip(self._objects, objects, strict=True)):
            return None
        parts = list(objects)
        for k, kind, owner in self._steps:
            if k >= len(parts) or type(parts[k]) is not kind:
                return None
            parts += _parts(parts[k], owner)
        if list(map(id, parts)) != self._ids:
            return None
        own = [parts[k] for k in self._at.values()]
        if any(ref() is not t for ref, t in zip(self._tensors, own, strict=True)):
            return None
        if list(map(torch.Tensor.data_ptr, own)) != self._addresses or not self._alike(*own):
            return None
        return Content(self._key, [parts[k] for k in self._all], memory=self._memory)


def _parts(value: Any, owner: bool) -> list[Any]:
    table = vars(value) if owner else value
    if isinstance(table, deque):
        return [*table, table.maxlen]
    return [*table, *table.values()] if isinstance(table, dict) else list(table)


def _goes_with(found: Content, objects: Sequence[Any]) -> bool:
    """Whether keeping what objects hold keeps none of them alive: nothing of it leads back to one, as a function may. All of their state is
    in the tables of their attributes, too."""
    own, owners = set(map(id, objects)), (*objects, *found.owners)
    if found.unseen or len(own) < len(objects) or not own.isdisjoint(map(id, found.containers)):
        return False
    # Of an owner what is in its `__dict__` is compared, of a container what is in itself.
    if any(not type(one).__weakrefoffset__ for one in objects) or any(map(named_slots, map(type, owners))):
        return False
    if any(map(named_slots, map(type, found.containers))) or any(type(one).__dictoffset__ for one in found.containers):
        return False
    tables = (*map(vars, owners), *found.containers)
    parts = [one for table in tables for one in (table.values() if isinstance(table, dict) else table)]
    return not any(id(one) in own or isinstance(one, (types.FunctionType, types.BuiltinFunctionType)) for one in parts)
