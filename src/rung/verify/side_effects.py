"""Side effects that a candidate must not have: on the model object, torch's settings for the whole process, and its functions.

The reference and the baseline run in the candidate's process. What it changes for the whole process changes what it is judged by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.backends import cuda, cudnn

from rung.hardware.device import matmul_precision_name


def model_properties(model: torch.nn.Module) -> dict[str, Any]:
    """The properties of a model that a candidate must leave as they were, apart from the weights' values."""
    modules = dict(model.named_modules())
    return {
        "state-dict keys": list(model.state_dict()),
        "train or eval mode": [m.training for m in modules.values()],
        "classes of the modules": [type(m) for m in modules.values()],
        "parameter objects": [id(p) for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "dtypes of the weights": [t.dtype for t in (*model.parameters(), *model.buffers())],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules.values()],
    }  # fmt: skip


def torch_settings() -> dict[str, Any]:
    """Settings of torch that hold for all code, the reference's and the user's included. A setting is None if it cannot be read, because the
    older and the newer way of setting precisions were mixed."""
    return {name: _read(read) for name, (read, _) in _SETTINGS.items()}


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError:
        return None


def _matmul(name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """A switch of torch.backends.cuda.matmul; None where this torch has no such switch."""
    return lambda: getattr(cuda.matmul, name, None), lambda value: setattr(cuda.matmul, name, value)


# How each is read and how it is put back.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "float32 matmul precision": (matmul_precision_name, torch.set_float32_matmul_precision),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        lambda on: [torch.set_autocast_enabled(kind, on) for kind in ("cpu", "cuda")],
    ),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "TF32 in convolutions": (lambda: cudnn.allow_tf32, lambda on: setattr(cudnn, "allow_tf32", on)),
    "the search for convolutions": (lambda: cudnn.benchmark, lambda on: setattr(cudnn, "benchmark", on)),
    "sums of float16 products": _matmul("allow_fp16_reduced_precision_reduction"),
    "sums of bfloat16 products": _matmul("allow_bf16_reduced_precision_reduction"),
    "accumulation in float16": _matmul("allow_fp16_accumulation"),
    "flash attention": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "memory-efficient attention": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "plain attention": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
}


def global_functions(model: nn.Module) -> dict[tuple[str, str], tuple[Any, str, Any]]:
    """Functions that compute or tell the time for all code in the process, as (holder, name, function) by the names of both: torch's and
    `time`'s own functions, tensors' methods, and the `forward` of every class in the model."""
    import torch._dynamo  # whose first import, by whomever, replaces torch.manual_seed

    functions = {}
    for holder in (time, torch, torch.Tensor, nn.functional, torch.cuda, torch.linalg, torch.autograd):
        for name, function in vars(holder).items():
            if callable(function) and not name.startswith("__"):
                functions[holder.__name__, name] = holder, name, function
    for kind in _classes(model):
        for name in {"forward", "__call__", "_call_impl", "_wrapped_call_impl"} & set(vars(kind)):
            functions[f"{kind.__module__}.{kind.__qualname__}", name] = kind, name, vars(kind)[name]
    return functions


def _classes(model: nn.Module) -> Iterator[type]:
    yield from {kind: None for module in model.modules() for kind in type(module).__mro__ if kind is not object}


def restore_functions(before: dict[tuple[str, str], tuple[Any, str, Any]]) -> list[str]:
    """Puts back every function of `global_functions` that was replaced since. Returns a sentence for each."""
    failures = []
    for (place, name), (holder, _, function) in before.items():
        if vars(holder).get(name) is not function:
            setattr(holder, name, function)
            failures.append(f"the candidate replaces {place}.{name} for the whole process")
    return failures


def changed_properties(before: dict[str, Any], after: dict[str, Any], untouched: dict[str, Any]) -> list[str]:
    """A sentence for each of the `model_properties` that the candidate changed. untouched: those of another copy, which only ran: a model may
    attach hooks to itself, or set its mode, when it is first called."""
    return [
        f"the candidate changed the model's {name}"
        for name in before
        if after[name] not in (before[name], untouched[name])
    ]


def restore_settings(before: dict[str, Any]) -> list[str]:
    """Puts back every one of the `torch_settings` that differs from before. Returns a sentence for each."""
    after = torch_settings()
    changed = [name for name in before if before[name] != after[name]]
    for name in changed:
        if before[name] is not None:
            _, restore = _SETTINGS[name]
            restore(before[name])
    return [
        f"the candidate changes {name} for the whole process, from {before[name]} to {after[name]}" for name in changed
    ]
