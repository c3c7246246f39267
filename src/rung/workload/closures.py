"""Functions that a model keeps, and that hold on to that model: a hook, a lambda, a `forward` that was put on a module.

`copy.deepcopy` takes a function as it is. That of a copy would run the original, with the original's weights, and would write what it
notes into the original. So the copy is given functions of the same code, whose closures and defaults hold what was copied.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PLAIN = (dict, list, tuple, set, frozenset)


class Rebinding:
    """What a copy holds in the place of what the original holds. known: the memo that `copy.deepcopy` has left, copies by the id of their
    originals, which somebody keeps alive."""

    def __init__(self, known: Mapping[int, Any]) -> None:
        self._known: dict[int, Any] = {**known}
        self._copies = {id(copy) for copy in known.values()}
        self._seen: set[int] = set()

    def within(self, model: torch.nn.Module) -> None:
        """Goes through all that a copy keeps, and exchanges the functions in it that hold on to the original."""
        for module in model.modules():
            self._inside(vars(module))

    def of(self, value: Any) -> Any:
        """What stands for a value: the copy of what was copied, a function or a container that holds copies, or the value itself."""
        if id(value) in self._known:
            return self._known[id(value)]
        if not self._reaches(value, set()):
            return value
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            made = type(value)(
                self.of(value.func), *map(self.of, value.args), **{k: self.of(v) for k, v in value.keywords.items()}
            )
            vars(made).update({name: self.of(held) for name, held in vars(value).items()})
            return made
        if isinstance(value, dict):
            filled = self._known[id(value)] = value.copy()
            filled.update({name: self.of(held) for name, held in value.items()})
            return filled
        if isinstance(value, list):
            items = self._known[id(value)] = value.copy()
            items[:] = map(self.of, value)
            return items
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(map(self.of, value))
        return type(value)(map(self.of, value))  # a tuple or a set

    def _inside(self, value: Any) -> None:
        """Exchanges functions in what the copy has for itself; what it shares with the original is left as it is."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, dict):
            for name, held in [*value.items()]:
                if (now := self._exchanged(held)) is not held:
                    value[name] = now
        elif isinstance(value, list):
            for index, held in enumerate(value):
                if (now := self._exchanged(held)) is not held:
                    value[index] = now
        elif hasattr(value, "__dict__"):
            self._inside(vars(value))

    def _exchanged(self, value: Any) -> Any:
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial, tuple, set, frozenset)):
            return self.of(value)
        if id(value) in self._copies and not isinstance(value, type):
            self._inside(value)
        return value

    def _reaches(self, value: Any, seen: set[int]) -> bool:
        """Whether something that was copied is held by a value, be it by a function in it."""
        if id(value) in self._known:
            return self._known[id(value)] is not value
        if id(value) in seen:
            return False
        seen.add(id(value))
        return any(self._reaches(held, seen) for held in _held(value))

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        made = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            None,
            tuple(cells) if function.__closure__ else None,
        )
        self._known[id(function)] = made  # first: it may be in a closure of its own
        for cell, own in zip(cells, function.__closure__ or (), strict=True):
            if not _empty(own):
                cell.cell_contents = self.of(own.cell_contents)
        made.__defaults__ = self.of(function.__defaults__)
        made.__kwdefaults__ = self.of(function.__kwdefaults__)
        made.__dict__.update({name: self.of(held) for name, held in vars(function).items()})
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        """Functions that share a variable go on to share it."""
        return self._known.setdefault(id(cell), types.CellType())  # type: ignore[no-any-return]


def _empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _held(value: Any) -> list[Any]:
    """What a function, or a container, holds."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if not _empty(cell)]
        return [*cells, value.__defaults__, value.__kwdefaults__, *vars(value).values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values(), *vars(value).values()]
    if isinstance(value, dict):
        return [*value.values()]
    return [*value] if isinstance(value, PLAIN) else []
