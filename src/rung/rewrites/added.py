"""The inputs that passes gave a graph beside its own: what they stand for, and where their values come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from rung.hardware.torch_versions import compilers_own
from rung.rewrites.joined import MEMBERS, Joined
from rung.rewrites.kept import KEPT, Copies, Kept

VALUE = "rung_value"


class Held:
    """The value of one input that depends on no argument."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __call__(self, arguments: Sequence[Any]) -> torch.Tensor:
        return self._tensor


def added_inputs(gm: fx.GraphModule, copies: Copies) -> list[Joined | Kept | Held]:
    """The inputs that the passes added, in the order in which the compiled function takes them after its own. copies: where
    those of weights are kept."""
    inputs = gm.graph.find_nodes(op="placeholder")
    spots = {node.name: spot for spot, node in enumerate(inputs)}

    def one(node: fx.Node) -> Joined | Kept | Held:
        if KEPT in node.meta:
            names, recipe = node.meta[KEPT]
            return Kept([spots[name] for name in names], recipe, copies)
        if MEMBERS in node.meta:
            return Joined([spots[name] for name in node.meta[MEMBERS]])
        return Held(node.meta[VALUE])

    return [one(node) for node in inputs if _added(node)]


def examples(gm: fx.GraphModule) -> list[torch.Tensor]:
    """What to compile the added inputs for. Fake tensors: while it compiles, the compiler relies on the weights being
    where they were when it looked, so they move in the first call."""
    added = [node for node in gm.graph.find_nodes(op="placeholder") if _added(node)]
    return [compilers_own(node.meta["example_value"]) for node in added]


def _added(node: fx.Node) -> bool:
    return any(key in node.meta for key in (MEMBERS, VALUE, KEPT))
