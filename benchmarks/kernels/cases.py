"""What is measured: a kernel, its reference, the same of Liger-Kernel where it has one, inputs, and bytes it must move."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rung import kernels
from rung.kernels import reference


@dataclass(frozen=True)
class Case:
    """inputs(shape, dtype) -> tensors; forward, backward: tensors of x's size that have to be read or written, so that
    bytes = count x size of `inputs[0]`. shapes: (small, large)."""

    name: str
    ours: Callable[..., Any]
    eager: Callable[..., Any]
    inputs: Callable[[tuple[int, ...], torch.dtype], tuple[torch.Tensor, ...]]
    forward: float
    backward: float
    shapes: tuple[tuple[int, ...], ...]
    liger: Callable[..., Any] | None = None


def leaf(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)


def heads(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q as Hugging Face has it, (batch, heads, tokens, d) with heads inside tokens, and cos, sin of d columns."""
    batch, head_count, tokens, dim = shape
    q = torch.randn(batch, tokens, head_count, dim, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
    angle = torch.outer(torch.arange(tokens), 1e4 ** -(torch.arange(dim // 2) / (dim // 2))).to("cuda")
    table = torch.cat((angle, angle), -1).unsqueeze(0)
    return q, table.cos().to(dtype), table.sin().to(dtype)


def logits(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return leaf(*shape, dtype=dtype), torch.randint(0, shape[1], shape[:1], device="cuda")


def one_head(q: torch.Tensor) -> torch.Tensor:
    """Keys for Liger-Kernel's function, which rotates both, in place: of one head, so that they hardly cost."""
    batch, _, tokens, dim = q.shape
    return q.new_empty(batch, tokens, 1, dim).transpose(1, 2)


def liger() -> dict[str, Callable[..., Any]]:
    """Liger-Kernel's functions by our names; empty where it is not installed."""
    try:
        from liger_kernel.transformers import functional as F
    except Exception:
        return {}
    return {
        "rope": lambda q, cos, sin: F.liger_rope(q, one_head(q), cos, sin)[0],
        "cross_entropy": F.liger_cross_entropy,
    }


def cases() -> list[Case]:
    pairs, theirs = {"interleaved": True}, liger()
    shapes = ((1, 32, 128, 128), (8, 32, 4096, 128))
    table = [
        ("rope", kernels.rope, reference.rope, heads, 2, 2, shapes),
        ("rope (interleaved)", functools.partial(kernels.rope, **pairs), functools.partial(reference.rope, **pairs), heads, 2, 2, shapes),
        ("cross_entropy", kernels.cross_entropy, reference.cross_entropy, logits, 1, 2, ((512, 32000), (8192, 128256))),
    ]  # fmt: skip
    return [Case(*row, liger=theirs.get(row[0])) for row in table]
