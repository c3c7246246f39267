"""The inputs that passes gave a graph beside its own: what they stand for, and where their values come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from rung.hardware.torch_versions import compilers_own
from rung.rewrites.joined import MEMBERS, Joined
from rung.rewrites.kept import KEPT, AllKept, Copies, Kept

VALUE = "rung_value"


class Held:
    """The value of one input that depends on no argument."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __call__(self, arguments: Sequence[Any]) -> torch.Tensor:
        return self._tensor


class Added:
    """What a graph is given after its own arguments, in the order of its inputs. copies: where values of weights are kept."""

    def __init__(self, gm: fx.GraphModule, copies: Copies) -> None:
        inputs = gm.graph.find_nodes(op="placeholder")
        spots = {node.name: spot for spot, node in enumerate(inputs)}
        kept: list[Kept] = []
        self._others: list[tuple[int, Joined | Held]] = []
        for spot, node in enumerate(filter(_added, inputs)):
            if KEPT in node.meta:
                names, computation = node.meta[KEPT]
                kept.append(Kept(tuple(spots[name] for name in names), computation))
            elif MEMBERS in node.meta:
                self._others.append((spot, Joined([spots[name] for name in node.meta[MEMBERS]])))
            else:
                self._others.append((spot, Held(node.meta[VALUE])))
        self.kept = AllKept(kept, copies) if kept else None

    def __bool__(self) -> bool:
        return bool(self.kept or self._others)

    @property
    def joined(self) -> list[Joined]:
        return [one for _, one in self._others if isinstance(one, Joined)]

    def __call__(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        found = self.kept(arguments) if self.kept else []
        for spot, one in self._others:
            found.insert(spot, one(arguments))
        return found


def examples(gm: fx.GraphModule) -> list[torch.Tensor]:
    """What to compile the added inputs for. Fake tensors: while it compiles, the compiler relies on the weights being
    where they were when it looked, so they move in the first call."""
    added = [node for node in gm.graph.find_nodes(op="placeholder") if _added(node)]
    return [compilers_own(node.meta["example_value"]) for node in added]


def _added(node: fx.Node) -> bool:
    return any(key in node.meta for key in (MEMBERS, VALUE, KEPT))
