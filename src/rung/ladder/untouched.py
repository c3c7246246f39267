"""What a candidate must leave as it was: the model object, and torch's settings for the whole process."""

from __future__ import annotations

from typing import Any

import torch

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
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules.values()],
    }  # fmt: skip


def process() -> dict[str, Any]:
    """Settings of torch that hold for all code, the reference's and the user's included."""
    return {
        "float32 matmul precision": matmul_precision_name(),
        "the default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        "the number of threads": torch.get_num_threads(),
    }


def restore(before: dict[str, Any]) -> None:
    torch.set_float32_matmul_precision(before["float32 matmul precision"])
    torch.set_default_dtype(before["the default dtype"])
    torch.use_deterministic_algorithms(before["deterministic algorithms"])
    torch.set_grad_enabled(before["gradients"])
    torch.set_num_threads(before["the number of threads"])


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"the candidate changed the model's {what}" for what in before if before[what] != after[what]]


def changed_settings(before: dict[str, Any]) -> list[str]:
    """What of `process` is another than before, in sentences; it is put back."""
    after = process()
    if after != before:
        restore(before)
    return [
        f"the candidate changes {what} for the whole process, from {before[what]} to {after[what]}"
        for what in before
        if before[what] != after[what]
    ]
