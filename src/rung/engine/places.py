"""What recipes put into a model in place: calls of its blocks, its own switches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn


class Places:
    """One such place of each module. What was put there last is in effect. What was there before all of it is back once each owner has taken
    its own away, in whatever order. An owner that is gone has none there any more."""

    def __init__(self, read: Callable[[nn.Module], Any], write: Callable[[nn.Module, Any], None]) -> None:
        self._read, self._write = read, write
        self._put: weakref.WeakKeyDictionary[nn.Module, tuple[Any, weakref.WeakKeyDictionary[Any, Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def put(self, module: nn.Module, value: Any, owner: Any) -> None:
        before = self._read(module)
        self._write(module, value)
        _, put = self._put.setdefault(module, (before, weakref.WeakKeyDictionary()))
        put.pop(owner, None)
        put[owner] = value

    def take(self, module: nn.Module, owner: Any) -> None:
        """The owner's own; nothing where it has put nothing there, or has taken it already."""
        before, put = self._put.get(module, (None, {}))
        if owner not in put:
            return
        del put[owner]
        self._write(module, [before, *put.values()][-1])
        if not put:
            del self._put[module]
