"""What goes on in a process while it is timed, and only it can see."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def graphs_compiled() -> int:
    """How many graphs Dynamo has compiled in this process so far; 0 where it is not loaded."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"].get("unique_graphs", 0)) if dynamo else 0


def elements(batch: Any) -> int:
    """Of all tensors in a batch together."""
    import torch
    from torch.utils import _pytree as pytree

    return sum(t.numel() for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor))


def shapes_of(batches: Sequence[Any]) -> list[str]:
    """The different sets of shapes among batches, as texts; one where all are alike."""
    import torch
    from torch.utils import _pytree as pytree

    found = [[tuple(t.shape) for t in pytree.tree_leaves(b) if isinstance(t, torch.Tensor)] for b in batches]
    return list(dict.fromkeys(" ".join(map(str, shapes)) for shapes in found))
