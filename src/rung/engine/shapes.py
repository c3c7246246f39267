"""Input shapes: which calls have the same ones, and which dimensions vary between two calls."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import torch

Shapes = Any  # nested tuples of torch.Size, one a tensor; None for whatever holds no tensor


def shapes_of(item: Any) -> Shapes:
    """The shapes of all tensors in nested tuples, lists, dicts and dataclasses, as a key of a dict. A call asks it every time:
    no pytree, which takes several microseconds."""
    if isinstance(item, torch.Tensor):
        return None if item.is_nested else item.shape
    if isinstance(item, (tuple, list)):
        return tuple([shapes_of(one) for one in item])
    if isinstance(item, (dict, UserDict)):
        return tuple([(name, shapes_of(one)) for name, one in item.items()])
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return shapes_of(vars(item)) if hasattr(item, "__dict__") else None
    return None


def tensors_of(item: Any) -> Iterator[torch.Tensor]:
    """The tensors whose shapes `shapes_of` names, in its order."""
    if isinstance(item, torch.Tensor):
        if not item.is_nested:
            yield item
    elif isinstance(item, (tuple, list)):
        for one in item:
            yield from tensors_of(one)
    elif isinstance(item, (dict, UserDict)):
        yield from tensors_of(list(item.values()))
    elif dataclasses.is_dataclass(item) and not isinstance(item, type) and hasattr(item, "__dict__"):
        yield from tensors_of(vars(item))


def ranks(shapes: Shapes) -> Any:
    """What stays when only sizes change: the structure of the inputs, and the number of dimensions of each tensor."""
    if isinstance(shapes, torch.Size):
        return len(shapes)
    return tuple(map(ranks, shapes)) if isinstance(shapes, tuple) else shapes


def sizes(shapes: Shapes) -> list[torch.Size]:
    """Of each tensor."""
    if isinstance(shapes, torch.Size):
        return [shapes]
    return [size for one in shapes for size in sizes(one)] if isinstance(shapes, tuple) else []
