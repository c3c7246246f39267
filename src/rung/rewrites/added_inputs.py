"""The inputs that passes gave a graph beside its own: what they stand for, and where their values come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from rung.hardware.torch_versions import compilers_own
from rung.rewrites.packed_weights import MEMBERS, PackedWeights
from rung.rewrites.weight_cache import CACHED, CachedValue, CachedValues, WeightCache

VALUE = "rung_value"


class ConstantInput:
    """The value of one input that depends on no argument."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __call__(self, arguments: Sequence[Any]) -> torch.Tensor:
        return self._tensor


class AddedInputs:
    """What a graph is given after its own arguments, in the order of its inputs. weight_cache: where values of weights are kept."""

    def __init__(self, gm: fx.GraphModule, weight_cache: WeightCache) -> None:
        inputs = gm.graph.find_nodes(op="placeholder")
        spots = {node.name: spot for spot, node in enumerate(inputs)}
        cached: list[CachedValue] = []
        self._others: list[tuple[int, PackedWeights | ConstantInput]] = []
        for spot, node in enumerate(filter(_is_added, inputs)):
            if CACHED in node.meta:
                names, computation = node.meta[CACHED]
                cached.append(CachedValue(tuple(spots[name] for name in names), computation))
            elif MEMBERS in node.meta:
                self._others.append((spot, PackedWeights([spots[name] for name in node.meta[MEMBERS]])))
            else:
                self._others.append((spot, ConstantInput(node.meta[VALUE])))
        self.cached = CachedValues(cached, weight_cache) if cached else None

    def __bool__(self) -> bool:
        return bool(self.cached or self._others)

    @property
    def packed(self) -> list[PackedWeights]:
        return [one for _, one in self._others if isinstance(one, PackedWeights)]

    def __call__(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        found = self.cached(arguments) if self.cached else []
        for spot, one in self._others:
            found.insert(spot, one(arguments))
        return found


def examples(gm: fx.GraphModule) -> list[torch.Tensor]:
    """What to compile the added inputs for. Fake tensors: while it compiles, the compiler relies on the weights being
    where they were when it looked, so they move in the first call."""
    added = [node for node in gm.graph.find_nodes(op="placeholder") if _is_added(node)]
    return [compilers_own(node.meta["example_value"]) for node in added]


def _is_added(node: fx.Node) -> bool:
    return any(key in node.meta for key in (MEMBERS, VALUE, CACHED))
