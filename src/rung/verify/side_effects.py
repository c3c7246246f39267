"""What a candidate must leave as it was: the model object, torch's settings for the whole process, and its functions.

The reference and the baseline run beside the candidate: what it changes for all of them changes what it is judged by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.backends import cuda, cudnn

from rung.hardware.device import matmul_precision_name


def fingerprint(model: torch.nn.Module) -> dict[str, Any]:
    """What a candidate must leave as it was, apart from the weights' values."""
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


def process() -> dict[str, Any]:
    """Settings of torch that hold for all code, the reference's and the user's included. One that cannot be read (the
    older and the newer way of setting precisions were mixed) is None."""
    return {what: _read(read) for what, (read, _) in _SETTINGS.items()}


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


def functions(model: nn.Module) -> dict[tuple[str, str], tuple[Any, str, Any]]:
    """What computes and what tells the time, for all code in the process: (holder, name, function) by what they are
    called. torch's and `time`'s own functions, tensors' methods, and the `forward` of every class in the model."""
    import torch._dynamo  # which replaces torch.manual_seed when it is first imported, by whomever

    found = {}
    for holder in (time, torch, torch.Tensor, nn.functional, torch.cuda, torch.linalg, torch.autograd):
        for name, function in vars(holder).items():
            if callable(function) and not name.startswith("__"):
                found[holder.__name__, name] = holder, name, function
    for kind in _classes(model):
        for name in {"forward", "__call__", "_call_impl", "_wrapped_call_impl"} & set(vars(kind)):
            found[f"{kind.__module__}.{kind.__qualname__}", name] = kind, name, vars(kind)[name]
    return found


def _classes(model: nn.Module) -> Iterator[type]:
    yield from {kind: None for module in model.modules() for kind in type(module).__mro__ if kind is not object}


def replaced(before: dict[tuple[str, str], tuple[Any, str, Any]]) -> list[str]:
    """Functions of `functions` that are others by now, in sentences; they are put back."""
    said = []
    for (place, name), (holder, _, function) in before.items():
        if vars(holder).get(name) is not function:
            setattr(holder, name, function)
            said.append(f"the candidate replaces {place}.{name} for the whole process")
    return said


def changed(before: dict[str, Any], after: dict[str, Any], untouched: dict[str, Any]) -> list[str]:
    """What of `fingerprint` a candidate has changed, in sentences. untouched: that of another copy, which only ran: a model may attach
    hooks to itself, or set its mode, when it is first called."""
    return [
        f"the candidate changed the model's {what}"
        for what in before
        if after[what] not in (before[what], untouched[what])
    ]


def changed_settings(before: dict[str, Any]) -> list[str]:
    """What of `process` is another than before, in sentences; it is put back."""
    after = process()
    for what in before:
        if before[what] != after[what] and before[what] is not None:
            _SETTINGS[what][1](before[what])
    return [
        f"the candidate changes {what} for the whole process, from {before[what]} to {after[what]}"
        for what in before
        if before[what] != after[what]
    ]
