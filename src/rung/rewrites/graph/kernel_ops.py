"""The Triton kernels as nodes of a graph: which operator, and whether it runs on the tensors at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def operator(name: str) -> Callable[..., Any]:
    """`torch.ops.rung.NAME`, with its gradient: AOTAutograd takes it apart into launches of the kernel."""
    import rung.kernels.families.float32_attention
    import rung.kernels.functional  # noqa: F401  both register the operators

    return getattr(torch.ops.rung, name).default  # type: ignore[no-any-return]


def obstacle(*tensors: torch.Tensor | None) -> str:
    """Why the kernels do not run on these tensors; "" where they do."""
    from rung import kernels

    given = [tensor for tensor in tensors if tensor is not None]
    if not kernels.available():
        return "its kernel needs Triton, which is not installed"
    from rung.kernels.ops import DTYPES, INTERPRETED

    if not INTERPRETED and any(tensor.device.type != "cuda" for tensor in given):
        return "its kernel runs on a GPU"
    measured = set(DTYPES) - {torch.float64}
    odd = next((t.dtype for t in given if t.is_floating_point() and t.dtype not in measured), None)
    return f"its kernel does not take {str(odd).removeprefix('torch.')}" if odd else ""


def called(node: fx.Node) -> bool:
    """Whether a node calls one of them."""
    return node.op == "call_function" and getattr(node.target, "namespace", "") == "rung"


def cast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast casts what a product reads, for operators that it does not know."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device) and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor
