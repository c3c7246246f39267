"""What a recorded graph takes as given of an optimizer: where its state lies, whom it steps, and the numbers it was told.

A replay reads the addresses and holds the numbers that it was recorded with. A state that was loaded, a momentum that a scheduler
turns (OneCycleLR) or a weight decay that is set anew would go unseen by it. Learning rates are read from memory, and may change.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

import torch


class GivenOptimizer:
    """What its own steps do is no change: `settle` is told after each that ran. A state whose `.data` is exchanged is not seen."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._kept: list[Any] = []
        self.settle()

    def changed(self) -> str:
        """What is another than when it settled, in words; empty where nothing is."""
        now = self._now()
        state = self._state()
        if len(state) != len(self._kept) or not all(map(is_, state, self._kept)):
            self._kept = []  # a state that was replaced need not wait for the next step
            return "the state"
        if now == self._seen:
            return ""
        changed = (
            name for one, other in zip(now, self._seen, strict=False) for name in one if one[name] != other[name]
        )
        return f"`{name}`" if (name := next(changed, "params")) != "params" else "what is trained"

    def settle(self) -> None:
        self._seen = self._now()
        self._kept = self._state()

    def _now(self) -> list[dict[str, Any]]:
        """Only what its class itself takes is read in a step; a scheduler writes other things beside it."""
        told = [name for name in self._optimizer.defaults if name != "lr"]
        return [
            {"params": list(map(id, group["params"])), **{name: group.get(name) for name in told}}
            for group in self._optimizer.param_groups
        ]

    def _state(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._optimizer.state.values())))
