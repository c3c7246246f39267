"""Tensors of a batch that torch's pytree does not reach, because a class of the user's holds them. Nothing would move them to a device, copy
them or compare them, so such a batch is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rung.errors import WorkloadError
from rung.workload.base import Batch, Workload
from rung.workload.copy_model import tensors_within


def refuse_hidden_tensors(workload: Workload, batch: Batch) -> None:
    """Raises WorkloadError where a batch hides tensors."""
    if why := hidden_tensors(batch):
        raise WorkloadError(f"{workload.label}: inputs(seed) gives {why}.")


def hidden_tensors(batch: Batch) -> str:
    """What hides tensors in a batch, and what to do, as the end of a sentence; empty where nothing does."""
    import torch
    from torch.utils import _pytree as pytree

    for leaf in pytree.tree_leaves(batch):
        if not isinstance(leaf, torch.Tensor) and tensors_within([leaf]):
            kind = type(leaf)
            return (
                f"a {kind.__qualname__}, in which torch's pytree finds no tensors; {_instead(leaf, kind.__qualname__)}"
            )
    return ""


def _instead(leaf: object, name: str) -> str:
    if isinstance(leaf, Mapping):
        return "give a dict, as dict(...) makes of it"
    if dataclasses.is_dataclass(leaf):
        return f"register the class where it is defined, by torch.export.register_dataclass({name}), or give a dict"
    return (
        f"give its tensors in a dict, and have forward make a {name} of them, or register the class by "
        "torch.utils._pytree.register_pytree_node; a cache that forward writes to belongs in the model's buffers, as in examples/hf_generate.py:decode"
    )
