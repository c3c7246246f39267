"""The user's optimizer, remade with other switches."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from rung.errors import WorkloadError
from rung.workload import Workload


def made_by(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer | None:
    """The workload's own, of what is trained of a model; None in inference."""
    if workload.mode != "train" or workload.optimizer is None:
        return None
    return workload.optimizer([p for p in model.parameters() if p.requires_grad])


def accepts(optimizer: torch.optim.Optimizer, switch: str) -> bool:
    """Whether the optimizer's class is torch's own and takes the switch. A subclass may override `step`."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and switch in inspect.signature(kind).parameters


def can_be_captured(optimizer: torch.optim.Optimizer) -> bool:
    """Capturable by a switch, or (plain SGD) without any step counter on the host."""
    return accepts(optimizer, "capturable") or type(optimizer) is torch.optim.SGD


def remade(
    optimizer: torch.optim.Optimizer, params: Iterable[torch.nn.Parameter], *, fused: bool, capturable: bool
) -> torch.optim.Optimizer:
    """The same optimizer, its groups and hyper-parameters kept, with the switches set where they are asked for.

    capturable: it reads its learning rate from memory, too, where that is a tensor. SGD does so in its fused form alone;
    those without a fused form do in the one for many tensors, which is torch's choice on a GPU by itself.
    """
    switches: dict[str, Any] = {}
    if fused or (capturable and type(optimizer) is torch.optim.SGD):
        if not accepts(optimizer, "fused"):
            raise WorkloadError(f"{type(optimizer).__name__} has no fused form; leave fused-optimizer out.")
        switches |= {"fused": True, "foreach": False if accepts(optimizer, "foreach") else None}
    if capturable:
        if not can_be_captured(optimizer):
            raise WorkloadError(f"{type(optimizer).__name__} cannot be captured in a graph; leave capture out.")
        if accepts(optimizer, "capturable"):
            switches["capturable"] = True
            if not accepts(optimizer, "fused"):
                switches["foreach"] = True
    if not switches:
        return optimizer
    known = inspect.signature(type(optimizer)).parameters
    groups = [{**group, **switches} for group in optimizer.param_groups]
    defaults = {k: v for k, v in {**optimizer.defaults, **switches}.items() if k in known}
    return type(optimizer)(groups, **defaults)
