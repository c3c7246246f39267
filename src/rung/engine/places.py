"""What recipes put into a model in place: calls of its blocks, its own switches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn


class _Put:
    """What recipes have put into one place of one module. It is an attribute of the module: a block's compiled call holds the block, so a
    global table of such calls would keep the block for ever."""

    def __init__(self, module: nn.Module, before: Any) -> None:
        self.module, self.before = weakref.ref(module), before
        self.last: Any = None  # as it was read after Rung wrote it last
        self.values: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # by owner

    def __reduce__(self) -> tuple[Any, ...]:
        """A deep copy of the module, or a pickle of it, has None here."""
        return type(None), ()


class Places:
    """One such place of each module. What was put there last is in effect. What was there before all of it is back once each owner has taken
    its own away, in whatever order. An owner that is gone has none there any more."""

    def __init__(self, name: str, read: Callable[[nn.Module], Any], write: Callable[[nn.Module, Any], None]) -> None:
        self._attribute, self._read, self._write = f"_rung_{name}", read, write

    def put(self, module: nn.Module, value: Any, owner: Any) -> None:
        present, put = self._read(module), self._put_there(module)
        if put is None or (not put.values and put.last != present):  # the user has set it since
            put = _Put(module, before=present)
        self._write(module, value)
        put.last = self._read(module)
        put.values.pop(owner, None)
        put.values[owner] = value
        vars(module)[self._attribute] = put

    def take(self, module: nn.Module, owner: Any) -> None:
        """The owner's own; nothing where it has put nothing there, or has taken it already."""
        put = self._put_there(module)
        if put is None or owner not in put.values:
            return
        del put.values[owner]
        self._write(module, [put.before, *put.values.values()][-1])
        put.last = self._read(module)
        if not put.values:
            del vars(module)[self._attribute]

    def _put_there(self, module: nn.Module) -> _Put | None:
        put: _Put | None = vars(module).get(self._attribute)
        return put if put and put.module() is module else None  # a shallow copy has that of another module
