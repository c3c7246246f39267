"""Buffers that a rewrite took for what they held: a causal mask, above all, that a module keeps for its longest sequence.

A captured graph reads a buffer as it reads any input. What it holds is known all the same while the graph is rewritten; whether it
still holds that, and whether it is the same buffer at all (one graph serves all modules of the same code), is asked at every
call, by identity and version counter, and where these are others by the values.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from rung.rewrites.graph.captured import is_weight

HELD, TAKEN = "rung_held", "rung_taken"
MOST_ELEMENTS = 2**26  # of a buffer that is worth a look: a causal mask of 8192 tokens
MOST_ASKED = (
    200  # times in a row that values are compared, before a buffer that is written to in every call is given up
)


def note_buffers(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Marks the inputs whose values rewrites may look at."""
    for node, tensor in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=False):
        if is_weight(node) and _readable(tensor):
            node.meta[HELD] = tensor


def taken_buffers(gm: fx.GraphModule) -> list[Expected]:
    """Those that a rewrite did look at. From now on the graph holds none of them: a model may make its buffers anew."""
    held = [(node.meta.pop(HELD, None), node.meta.pop(TAKEN, False)) for node in gm.graph.find_nodes(op="placeholder")]
    return [Expected(spot, tensor) for spot, (tensor, taken) in enumerate(held) if taken and tensor is not None]


class Expected:
    """What one input is to hold, and the tensors that are known to hold it."""

    def __init__(self, spot: int, tensor: torch.Tensor) -> None:
        self.spot, self._shape, self._digest = spot, tensor.shape, _digest(tensor)
        self._known: list[tuple[weakref.ref[torch.Tensor], int]] = [(weakref.ref(tensor), tensor._version)]
        self._asked = 0

    def holds(self, tensor: torch.Tensor) -> bool:
        for one, version in self._known:
            if version == tensor._version and one() is tensor:
                self._asked = 0
                return True
        there = [(known, known[0]()) for known in self._known]
        self._known = [known for known, one in there if one is not None and one is not tensor]
        self._asked += 1
        if self._asked > MOST_ASKED or not _readable(tensor) or tensor.shape != self._shape:
            return False
        if _digest(tensor) != self._digest:
            return False
        self._known.append((weakref.ref(tensor), tensor._version))
        return True

    def written(self) -> bool:
        """Whether a tensor that was known to hold it holds something else by now."""
        known = [(one(), version) for one, version in self._known]
        return not all(self.holds(one) for one, version in known if one is not None and one._version != version)


def guarded(
    run: Callable[..., Any], expected: Sequence[Expected], otherwise: Callable[[Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """The graph, as long as its inputs hold what is expected; otherwise: makes the one that takes nothing from them."""
    other: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if all(one.holds(arguments[one.spot]) for one in expected):
            return run(*arguments)
        if not other:
            other.append(otherwise(arguments))
        return other[0](*arguments)

    return call


def _readable(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_inference()
        and not tensor.requires_grad  # a gradient goes to it, or through it to what it was made of
        and tensor.numel() <= MOST_ELEMENTS
    )


def _digest(tensor: torch.Tensor) -> bytes:
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(raw.numpy().tobytes(), digest_size=16).digest()
