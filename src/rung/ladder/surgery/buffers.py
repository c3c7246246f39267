"""Buffers of the model that a rewrite took for what they held: a causal mask, above all, that a module keeps for its longest sequence.

A captured graph reads a buffer as it reads any input. What it holds is known all the same while the graph is rewritten, and stays so
until somebody writes to it: that is looked for before every call, by version counters, and where one moved by the values. Once
one has changed, nothing is taken from buffers any more, for it may change in every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rung.ladder.surgery.captured import is_weight

HELD, TAKEN = "rung_held", "rung_taken"
MOST_ELEMENTS = 2**26  # of a buffer that is worth a look: a causal mask of 8192 tokens


@dataclass
class _Taken:
    holder: dict[str, torch.Tensor | None]
    name: str
    tensor: torch.Tensor
    version: int
    digest: bytes

    def holds(self) -> bool:
        now = self.holder.get(self.name)
        if now is self.tensor and now._version == self.version:
            return True
        if now is None or now.is_inference() or now.shape != self.tensor.shape or _digest(now) != self.digest:
            return False
        self.tensor, self.version = now, now._version
        return True


class Buffers:
    """Those of one model, as far as a graph's inputs are found among them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._taken: dict[tuple[int, str], _Taken] = {}
        self._given_up = False

    def note(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Marks the inputs whose values rewrites may look at."""
        places = {} if self._given_up else self._places()
        for node, tensor in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=False):
            if (
                id(tensor) in places
                and is_weight(node)
                and tensor.numel() <= MOST_ELEMENTS
                and not tensor.is_inference()
            ):
                node.meta[HELD] = tensor

    def keep(self, gm: fx.GraphModule) -> None:
        """Remembers those that a rewrite did look at."""
        places = self._places()
        for node in gm.graph.find_nodes(op="placeholder"):
            if node.meta.pop(TAKEN, False):
                tensor = node.meta[HELD]
                holder, name = places[id(tensor)]
                self._taken[id(holder), name] = _Taken(holder, name, tensor, tensor._version, _digest(tensor))

    def changed(self) -> bool:
        """Whether one of them holds something else by now; then, and from then on, none is taken."""
        if all(one.holds() for one in self._taken.values()):
            return False
        self._taken.clear()
        self._given_up = True
        return True

    def _places(self) -> dict[int, tuple[dict[str, torch.Tensor | None], str]]:
        return {
            id(tensor): (module._buffers, name)
            for module in self._model.modules()
            for name, tensor in module._buffers.items()
            if type(tensor) is torch.Tensor
        }


def _digest(tensor: torch.Tensor) -> bytes:
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(raw.numpy().tobytes(), digest_size=16).digest()
