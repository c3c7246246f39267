"""A model of one's own: a deep copy, also of one that deepcopy itself refuses."""

from __future__ import annotations

import copy

import torch


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """Tensors that a module worked out of its parameters when it was made and keeps as plain attributes (`torch.nn.utils.prune`, the older
    `weight_norm`) are copied as values: deepcopy takes none that has a history, and the next forward works them out anew."""
    kept = [t for module in model.modules() for t in vars(module).values() if isinstance(t, torch.Tensor)]
    known = {id(t): t.detach().clone() for t in kept if not t.is_leaf}
    return copy.deepcopy(model, known)
