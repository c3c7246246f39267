"""What the objects of calls hold, read anew only where that may be something else."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
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
        self._known: dict[tuple[int, ...], _Known] = {}

    def read(self, names: Sequence[str], objects: Sequence[Any]) -> Content:
        """names: what an answer calls the objects."""
        place = tuple(map(id, objects))
        known = self._known.get(place)
        if known is not None and known.holds(objects):
            return known.content
        self._known.pop(place, None)
        found = content(names, objects, self._kind)
        if _goes_with(found, objects):
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[place] = _Known(found, objects, partial(self._known.pop, place, None))
        return found


class _Known:
    """What objects held, for as long as they live."""

    def __init__(self, found: Content, objects: Sequence[Any], gone: Callable[[], Any]) -> None:
        self.content = found
        self._objects = [weakref.ref(one, lambda _: gone()) for one in objects]
        self._types = list(map(type, (*objects, *found.owners)))
        self._parts = self._parts_of(objects)
        self._tensors = list(
            {id(t): t for t in found.tensors}.values()
        )  # torch's check holds two that are one for changed
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        self._alike = dynamo.alike(self._tensors)

    def holds(self, objects: Sequence[Any]) -> bool:
        """Whether these are the objects, and hold the very objects and tensors, in the same places, that they held."""
        if any(ref() is not one for ref, one in zip(self._objects, objects, strict=True)):
            return False
        if list(map(type, (*objects, *self.content.owners))) != self._types:
            return False
        parts = self._parts_of(objects)
        if len(parts) != len(self._parts) or not all(map(is_, parts, self._parts)):
            return False
        if list(map(torch.Tensor.data_ptr, self._tensors)) != self._addresses:
            return False
        return self._alike is not None and self._alike(*self._tensors)

    def _parts_of(self, objects: Sequence[Any]) -> list[Any]:
        parts: list[Any] = []
        for table in (*map(vars, objects), *map(vars, self.content.owners), *self.content.containers):
            parts += table
            if isinstance(table, dict):
                parts += table.values()
        return parts


def _goes_with(found: Content, objects: Sequence[Any]) -> bool:
    """Whether keeping what objects hold keeps none of them alive: nothing of it leads back to one, as a function may. All of their state is
    in the tables of their attributes, too."""
    own, owners = set(map(id, objects)), (*objects, *found.owners)
    if found.unseen or len(own) < len(objects) or not own.isdisjoint(map(id, found.containers)):
        return False
    # Of an owner what is in its `__dict__` is compared, of a container what is in itself.
    if any(not type(one).__weakrefoffset__ for one in objects) or any(map(named_slots, map(type, owners))):
        return False
    if any(map(named_slots, map(type, found.containers))) or any(hasattr(one, "__dict__") for one in found.containers):
        return False
    tables = (*map(vars, owners), *found.containers)
    parts = [one for table in tables for one in (table.values() if isinstance(table, dict) else table)]
    return not any(id(one) in own or isinstance(one, (types.FunctionType, types.BuiltinFunctionType)) for one in parts)
