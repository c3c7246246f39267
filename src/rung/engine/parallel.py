"""A model in the hands of several ranks: what is called in its place, so that they train one model together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from rung.engine.channels_last import lay_out
from rung.engine.compiled_backward import can_be_compiled, python_reducer
from rung.engine.regions import layout
from rung.engine.summed_buckets import registered, sum_in_symmetric_memory
from rung.engine.symmetric_memory import enable_for_products, enabled_for_products
from rung.errors import WorkloadError
from rung.hardware import torch_versions
from rung.hardware.affinity import bound
from rung.hardware.device import Device
from rung.hardware.ranks import Ranks
from rung.plan import Exchange, Plan
from rung.workload import Workload

UNTOUCHED = Plan()


def in_parallel(workload: Workload, model: torch.nn.Module, device: Device, plan: Plan = UNTOUCHED) -> torch.nn.Module:
    """The module to call: for one rank, for inference and for a workload that does this itself, the model as it is. plan: what of it is
    about the exchange.

    Raises WorkloadError where this torch, or this machine, cannot.
    """
    if Ranks.here.world == 1 or workload.mode == "infer":
        return model
    if workload.parallel == "own":
        if plan.exchange.fused_products:
            enable_for_products(model)
        return model
    if workload.parallel == "fsdp2":
        return _sharded(model, device, plan.exchange)
    if plan.channels_last:
        lay_out(model)  # before there are buckets, whose layout is that of the weights
    exchange = plan.exchange
    own = [device.index] if device.is_gpu else None
    with python_reducer() if plan.compiles_backward else contextlib.nullcontext():
        called = torch.nn.parallel.DistributedDataParallel(model, device_ids=own, **dict(exchange.ddp))
    if exchange.symmetric_memory:
        sum_in_symmetric_memory(called, torch.bfloat16 if exchange.gradients == "bf16" else None)
    elif exchange.gradients == "bf16":
        called.register_comm_hook(None, _in_bf16())
    return called


def in_effect(called: torch.nn.Module) -> dict[str, Any]:
    """How DistributedDataParallel or fully_shard exchanges gradients and weights, as plain values; nothing of other modules."""
    if not isinstance(called, torch.nn.parallel.DistributedDataParallel):
        return _of_shards(called)
    hooks = [hook for hook, _ in getattr(called, "_comm_hooks", ())]  # torch tells nobody else
    summed = registered(called)
    in_bf16 = _in_bf16() in hooks or (summed is not None and summed.exchanged == torch.bfloat16)
    return {
        "ddp bucket_cap_mb": called.bucket_bytes_cap / 2**20,
        "ddp gradient_as_bucket_view": called.gradient_as_bucket_view,
        "ddp static_graph": called.static_graph,
        "gradients": "bf16" if in_bf16 else "",
        **({"buckets in symmetric memory": summed.count} if summed else {}),
    }


def _of_shards(called: torch.nn.Module) -> dict[str, Any]:
    """The same of FSDP2, whose modules keep it to themselves: with a torch that names it otherwise, nothing."""
    states = [module._get_fsdp_state() for module in called.modules() if hasattr(module, "_get_fsdp_state")]
    policies = [state._mp_policy for state in states if hasattr(state, "_mp_policy")]
    ahead = [
        len(state._states_to_forward_prefetch) for state in states if hasattr(state, "_states_to_forward_prefetch")
    ]
    found: dict[str, Any] = {"ahead": max(ahead)} if ahead else {}
    if policies:
        found["weights"] = "bf16" if any(policy.param_dtype == torch.bfloat16 for policy in policies) else ""
        reduced = [policy.reduce_dtype or policy.param_dtype for policy in policies]
        found["gradients"] = "bf16" if all(dtype == torch.bfloat16 for dtype in reduced) else ""
    return found


def lacking(plan: Plan, model: torch.nn.Module | None) -> str:
    """What of a plan's exchange a model that its user has wrapped does not do, and how it would be told to; empty where it does all."""
    exchange, found = plan.exchange, in_effect(model) if model is not None else {}
    arguments = [f"{name}={value}" for name, value in exchange.ddp if found.get(f"ddp {name}") != value]
    if arguments:
        return f"wrap the model yourself, by DistributedDataParallel(model, {', '.join(arguments)})"
    if exchange.symmetric_memory and "buckets in symmetric memory" not in found:
        return "call rung.engine.summed_buckets.sum_in_symmetric_memory(model) of your DistributedDataParallel in each rank; with bf16-gradients, add exchanged=torch.bfloat16, and register no other hook"
    if exchange.fused_products and not (model is not None and enabled_for_products(model)):
        return "call rung.engine.symmetric_memory.enable_for_products(model) of your tensor-parallel model in each rank"
    if exchange.gradients and found.get("gradients") != exchange.gradients:
        return "call register_comm_hook(None, bf16_compress_hook) of your DistributedDataParallel, or give fully_shard(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))"
    if exchange.weights and found.get("weights") != exchange.weights:
        return "give fully_shard(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False, reduce_dtype=torch.float32)); with bf16-gradients, reduce_dtype=torch.bfloat16. Weights are then in bfloat16 in every call, so call the model under torch.autocast where you use it without the recipe"
    if exchange.ahead and not found.get("ahead"):
        return f"call set_modules_to_forward_prefetch of each block that you gave fully_shard, with the {exchange.ahead} that follow, and set_modules_to_backward_prefetch with the {exchange.ahead} before it"
    if exchange.compiled_backward and not (model is not None and can_be_compiled(model)):
        return 'set torch._dynamo.config.optimize_ddp = "python_reducer" before you wrap the model in DistributedDataParallel'
    if exchange.one_graph and not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return "wrap the model yourself in DistributedDataParallel"
    if exchange.cores and not bound():
        return "have each rank call rung.hardware.affinity.bind(rung.hardware.pick()) once torch.distributed is initialized"
    if exchange.gathered:
        return "give fully_shard(reshard_after_forward=False), which does not show afterwards"
    return ""


def _in_bf16() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return bf16_compress_hook


def _sharded(model: torch.nn.Module, device: Device, exchange: Exchange) -> torch.nn.Module:
    """FSDP2: each block of a list of blocks is gathered by itself, and what is left is gathered with the model."""
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
    if exchange.gathered:
        how["reshard_after_forward"] = False
    for blocks in _blocks(model):
        for block in blocks:
            fully_shard(block, **how, **_exchanged_in(exchange, block))
        for at, block in enumerate(blocks if exchange.ahead else ()):
            block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + exchange.ahead])
            block.set_modules_to_backward_prefetch(blocks[max(0, at - exchange.ahead) : at][::-1])
    fully_shard(model, **how, **_exchanged_in(exchange, model))
    return model


def _blocks(model: torch.nn.Module) -> list[list[torch.nn.Module]]:
    """Lists of modules that have parameters and are called. Of nested lists the outer one, unless its members all differ, as the stages of a
    model do whose blocks then are the repeated ones: FSDP2 takes no module within one that it has."""
    found: list[list[torch.nn.Module]] = []
    walked, taken = set[int](), set[int]()  # ids: a module may be there in several places

    def walk(module: torch.nn.Module) -> None:
        if id(module) in walked or id(module) in taken:
            return
        walked.add(id(module))
        members = list(dict.fromkeys(module)) if isinstance(module, torch.nn.ModuleList) else []
        members = [m for m in members if _is_called(m) and next(m.parameters(), None) is not None]
        nested = any(isinstance(part, torch.nn.ModuleList) and len(part) > 1 for m in members for part in m.modules())
        if members and (not nested or len(set(map(layout, members))) < len(members)):
            found.append([])
            for member in members:
                parts = {id(part) for part in member.modules()}
                if not parts & taken:
                    taken.update(parts)
                    found[-1].append(member)
        for child in module.children():
            walk(child)

    walk(model)
    return found


def _is_called(module: torch.nn.Module) -> bool:
    """Lists and dictionaries of modules are not, unless they have a forward and `fully_shard` takes such."""
    if isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict) and not torch_versions.shards_called_lists():
        return False
    return type(module).forward is not torch.nn.Module.forward


def _exchanged_in(exchange: Exchange, module: torch.nn.Module) -> dict[str, Any]:
    """In which formats the weights of a module are gathered and its gradients summed. Autocast, which both go with, casts what torch's usual
    layers take, but for batch norms: their weights have to be in float32, and so are those that are gathered with them."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if not exchange.rounds:
        return {}
    lower = exchange.weights == "bf16" and not any(
        isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in _not_shared_out(module)
    )
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if lower else None,
        reduce_dtype=torch.bfloat16 if exchange.gradients == "bf16" else torch.float32,
        cast_forward_inputs=False,
    )
    return {"mp_policy": policy}


def _not_shared_out(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """It and what it holds, but for what is gathered by itself."""
    yield module
    for part in module.children():
        if not hasattr(part, "_get_fsdp_state"):
            yield from _not_shared_out(part)


def sharded(model: torch.nn.Module) -> bool:
    """Whether a rank holds a part of the weights only."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def tensor_parallel(model: torch.nn.Module) -> bool:
    """Whether several ranks compute parts of the same products: some weight is shared out in more ways than by `fully_shard`, whose ranks
    gather it."""
    by_fsdp = any(hasattr(module, "_get_fsdp_state") for module in model.modules())
    ways = (sum(not how.is_replicate() for how in getattr(p, "placements", ())) for p in model.parameters())
    return max(ways, default=0) > by_fsdp


def all_tensor_parallel(model: torch.nn.Module) -> bool:
    """Whether all ranks of the job do, and none of them trains on data of its own."""
    meshes = [parameter.device_mesh for parameter in model.parameters() if hasattr(parameter, "device_mesh")]
    return tensor_parallel(model) and all(mesh.ndim == 1 and mesh.size() == Ranks.here.world for mesh in meshes)


def without_exchange(called: torch.nn.Module | None) -> contextlib.AbstractContextManager[Any] | None:
    """While it lasts, ranks exchange no gradients, and their weights go apart; None where that cannot be left out."""
    if isinstance(called, torch.nn.parallel.DistributedDataParallel):
        apart: contextlib.AbstractContextManager[Any] = called.no_sync()
        return apart
    return None
