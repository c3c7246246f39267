"""Dropout: where a model has it, and the same workload without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from rung.workload import Workload


def rates(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules, and their attributes, that hold a dropout rate above 0: of dropout modules, and the plain numbers named
    after it (`attention_dropout`, `drop_path`) that a forward hands to `F.dropout` or to attention."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            names = ["p"]
        else:
            names = [name for name in vars(module) if "drop" in name.lower()]
        for name in names:
            value = getattr(module, name)
            if isinstance(value, float) and 0.0 < value <= 1.0:
                yield module, name


def active(model: nn.Module) -> bool:
    """Whether a run of this model, in the mode that it is in, may draw dropout masks."""
    return any(module.training for module, _ in rates(model))


def without_dropout(workload: Workload) -> Workload:
    """The same workload with every dropout rate at 0: two precisions never draw the same mask."""

    def model() -> torch.nn.Module:
        made = workload.model()
        for module, name in rates(made):
            setattr(module, name, 0.0)
        return made

    return replace(workload, model=model)
