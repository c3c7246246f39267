"""A model in the hands of several ranks: what is called in its place, so that they train one model together."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from rung.errors import WorkloadError
from rung.hardware.device import Device
from rung.hardware.ranks import Ranks
from rung.workload import Workload


def in_parallel(workload: Workload, model: torch.nn.Module, device: Device) -> torch.nn.Module:
    """The module to call: for one rank, for inference and for a workload that does this itself, the model as it is.

    Raises WorkloadError where this torch cannot.
    """
    if Ranks.here.world == 1 or workload.mode == "infer" or workload.parallel == "own":
        return model
    if workload.parallel == "fsdp2":
        return _sharded(model, device)
    own = [device.index] if device.is_gpu else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=own)


def _sharded(model: torch.nn.Module, device: Device) -> torch.nn.Module:
    """FSDP2: each block of a list of blocks is gathered by itself, and what is left with the model."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise WorkloadError(
            f"parallel='fsdp2' needs torch.distributed.fsdp.fully_shard, which torch {torch.__version__} lacks."
        ) from None
    mesh = init_device_mesh(device.kind, (Ranks.here.world,))
    for blocks in [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]:
        for block in blocks:
            if any(True for _ in block.parameters()):
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sharded(model: torch.nn.Module) -> bool:
    """Whether a rank holds a part of the weights only."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def without_exchange(called: torch.nn.Module | None) -> contextlib.AbstractContextManager[Any] | None:
    """While it lasts, ranks exchange no gradients, and their weights go apart; None where that cannot be left out."""
    if isinstance(called, torch.nn.parallel.DistributedDataParallel):
        apart: contextlib.AbstractContextManager[Any] = called.no_sync()
        return apart
    return None
