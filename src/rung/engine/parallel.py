"""A model in the hands of several ranks: what is called in its place, so that they train one model together."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from rung.errors import WorkloadError
from rung.hardware import torch_versions
from rung.hardware.affinity import bound
from rung.hardware.device import Device
from rung.hardware.ranks import Ranks
from rung.plan import Plan
from rung.workload import Workload

UNTOUCHED = Plan()


def in_parallel(workload: Workload, model: torch.nn.Module, device: Device, plan: Plan = UNTOUCHED) -> torch.nn.Module:
    """The module to call: for one rank, for inference and for a workload that does this itself, the model as it is. plan: what of it is
    about the exchange.

    Raises WorkloadError where this torch cannot.
    """
    if Ranks.here.world == 1 or workload.mode == "infer" or workload.parallel == "own":
        return model
    if workload.parallel == "fsdp2":
        return _sharded(model, device, plan.gathered)
    own = [device.index] if device.is_gpu else None
    called = torch.nn.parallel.DistributedDataParallel(model, device_ids=own, **dict(plan.ddp))
    if plan.gradients == "bf16":
        called.register_comm_hook(None, _in_bf16())
    return called


def in_effect(called: torch.nn.Module) -> dict[str, Any]:
    """How DistributedDataParallel exchanges gradients, as plain values; nothing of other modules."""
    if not isinstance(called, torch.nn.parallel.DistributedDataParallel):
        return {}
    hooks = [hook for hook, _ in getattr(called, "_comm_hooks", ())]  # torch tells nobody else
    return {
        "ddp bucket_cap_mb": called.bucket_bytes_cap / 2**20,
        "ddp gradient_as_bucket_view": called.gradient_as_bucket_view,
        "ddp static_graph": called.static_graph,
        "gradients": "bf16" if _in_bf16() in hooks else "",
    }


def lacking(plan: Plan, model: torch.nn.Module | None) -> str:
    """What of a plan's exchange a model that its user has wrapped does not do, and how it would be told to; empty where it does all."""
    found = in_effect(model) if model is not None else {}
    arguments = [f"{name}={value}" for name, value in plan.ddp if found.get(f"ddp {name}") != value]
    if arguments:
        return f"wrap the model yourself, by DistributedDataParallel(model, {', '.join(arguments)})"
    if plan.gradients and found.get("gradients") != plan.gradients:
        return "call register_comm_hook(None, bf16_compress_hook) of your DistributedDataParallel"
    if plan.one_graph and not found:
        return "wrap the model yourself in DistributedDataParallel"
    if plan.cores and not bound():
        return "have each rank call rung.hardware.affinity.bind(rung.hardware.pick()) once torch.distributed is initialized"
    if plan.gathered:
        return "give fully_shard(reshard_after_forward=False), which does not show afterwards"
    return ""


def _in_bf16() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return bf16_compress_hook


def _sharded(model: torch.nn.Module, device: Device, gathered: bool) -> torch.nn.Module:
    """FSDP2: each block of a list of blocks is gathered by itself, and what is left with the model."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise WorkloadError(
            f"parallel='fsdp2' needs torch.distributed.fsdp.fully_shard, which torch {torch.__version__} lacks."
        ) from None
    if device.kind == "cpu" and not torch_versions.shards_on_cpu():
        raise WorkloadError(
            f"parallel='fsdp2' needs a GPU here: fully_shard of torch {torch.__version__} does not run on a CPU."
        )
    how: dict[str, Any] = {"mesh": init_device_mesh(device.kind, (Ranks.here.world,))}
    if gathered:
        how["reshard_after_forward"] = False
    for blocks in [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]:
        for block in blocks:
            if any(True for _ in block.parameters()):
                fully_shard(block, **how)
    fully_shard(model, **how)
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
