"""What a recorded graph takes as given of a model: where its tensors lie, and what its modules' Python would read.

A replay runs no Python and reads the addresses that it was recorded with. `model.eval()`, an adapter that is switched off,
weights that are loaded with `assign=True` or a module in the place of another would go unseen by it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
INNER = ("_modules", "_parameters", "_buffers", *HOOKS)
MOST = 16  # states that are told apart
KNOWN = ("torch.", "transformers.", "peft.")  # whose hooks compute, or do nothing unless they are asked


class Given:
    """A model as far as replays depend on it: its modules with their plain attributes, and lists, sets and tables of such; its
    parameters and buffers. What is kept in objects of other kinds is not looked at.

    hooked: the first module with a hook of the user's, whose Python no replay would run; empty where there is none.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._states: list[list[Any]] = []
        self._addresses: list[Any] = []
        self._number: int | None = None
        self._read()

    def look(self) -> tuple[int | None, bool]:
        """(which of its states the model is in, whether tensors have moved since the last look). States are numbered as they are
        first seen, anew where tensors moved; None for those beyond the most that are told apart: what counts its calls is in
        another one at each."""
        try:
            same = (
                self._number is not None
                and self._now() == self._states[self._number]
                and self._lie() == self._addresses
            )
        except KeyError:  # an attribute is gone
            same = False
        moved = not same and self._read()
        return self._number, moved

    def _read(self) -> bool:
        # A scripted module keeps its attributes where Python does not see them.
        modules = {n: m for n, m in self._model.named_modules() if not isinstance(m, torch.jit.ScriptModule)}
        tables = [vars(m) for m in modules.values()]
        self._sized = [*tables, *(t[name] for t in tables for name in ("_modules", *HOOKS))]
        plain = [(t, [k for k, v in t.items() if k not in INNER and _plain(v)]) for t in tables]
        children = [(t["_modules"], list(t["_modules"])) for t in tables]
        # One call a module: this is done before every replay.
        self._readers = [(itemgetter(*keys, keys[0]), table) for table, keys in (*plain, *children) if keys]
        self._holders = [(t[kind], k) for t in tables for kind in ("_parameters", "_buffers") for k in t[kind]]
        self.hooked = next((name or "the model" for name, m in modules.items() if any(_foreign(m))), "")
        before, self._addresses = self._addresses, self._lie()
        moved = before != self._addresses
        if moved:
            self._states.clear()
        state = self._now()
        if state not in self._states and len(self._states) < MOST:
            self._states.append([x if isinstance(x, int) else tuple(map(_kept, x)) for x in state])
        self._number = self._states.index(state) if state in self._states else None
        return moved

    def _now(self) -> list[Any]:
        return [*map(len, self._sized), *(read(table) for read, table in self._readers)]

    def _lie(self) -> list[Any]:
        return [_where(table.get(name)) for table, name in self._holders]


def _where(tensor: torch.Tensor | None) -> Any:
    """An address, and whether it gets a gradient; a wrapped tensor has no address of its own."""
    if tensor is None:
        return None
    wrapped = type(tensor) is not nn.Parameter and is_traceable_wrapper_subclass(tensor)
    return id(tensor) if wrapped else tensor.data_ptr(), tensor.requires_grad


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(v, PLAIN) for pair in value.items() for v in pair)
    return isinstance(value, PLAIN) or (
        isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(v, PLAIN) for v in value)
    )


def _kept(value: Any) -> Any:
    """A value that stays as it is: of what holds plain ones, a copy."""
    return copy.copy(value) if isinstance(value, (list, set, dict)) else value


def _foreign(module: nn.Module) -> Iterator[bool]:
    """Of every hook of a module, whether it is the user's."""
    for kind in HOOKS:
        for hook in vars(module)[kind].values():
            yield not f"{getattr(hook, '__module__', '')}.".startswith(KNOWN)
