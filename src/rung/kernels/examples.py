"""Inputs for the kernels, as models of language have them: for benchmarks and for tuning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rung import kernels

Shape = tuple[int, ...]
Inputs = Callable[[Shape, torch.dtype, str], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Example:
    """call: the kernel; inputs(shape, dtype, device): its tensors; axes: what the numbers of a shape are; rows: which of them only
    say how often the same is done; shape: one at which the GPU is busy."""

    call: Callable[..., Any]
    inputs: Inputs
    axes: tuple[str, ...]
    rows: tuple[int, ...]
    shape: Shape

    def fewer(self, shape: Shape, times: int) -> Shape:
        """The shape with so many times fewer rows, or as few as there can be."""
        found = list(shape)
        for axis in self.rows:
            found[axis] = max(1, shape[axis] // times)
            times = -(-times * found[axis] // shape[axis])
        return tuple(found)


def leaf(*shape: int, dtype: torch.dtype, device: str = "cuda") -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=True)


def norm(count: int, parameters: int) -> Inputs:
    """`count` tensors of the shape, and as many parameters of its last dimension."""

    def inputs(shape: Shape, dtype: torch.dtype, device: str = "cuda") -> tuple[torch.Tensor, ...]:
        return (
            *(leaf(*shape, dtype=dtype, device=device) for _ in range(count)),
            *(leaf(shape[-1], dtype=dtype, device=device) for _ in range(parameters)),
        )

    return inputs


def heads(shape: Shape, dtype: torch.dtype, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    """q as Hugging Face has it, (batch, heads, tokens, d) with heads inside tokens, and cos, sin of d columns."""
    batch, head_count, tokens, dim = shape
    q = torch.randn(batch, tokens, head_count, dim, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
    angle = torch.outer(torch.arange(tokens), 1e4 ** -(torch.arange(dim // 2) / (dim // 2))).to(device)
    table = torch.cat((angle, angle), -1).unsqueeze(0)
    return q, table.cos().to(dtype), table.sin().to(dtype)


def logits(shape: Shape, dtype: torch.dtype, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    return leaf(*shape, dtype=dtype, device=device), torch.randint(0, shape[1], shape[:1], device=device)


_ROWS = ("rows", "columns")
_HEADS = ("batch", "heads", "tokens", "head dimension")
EXAMPLES = {
    "rms_norm": Example(kernels.rms_norm, norm(1, 1), _ROWS, (0,), (16384, 4096)),
    "add_rms_norm": Example(kernels.add_rms_norm, norm(2, 1), _ROWS, (0,), (16384, 4096)),
    "layer_norm": Example(kernels.layer_norm, norm(1, 2), _ROWS, (0,), (16384, 4096)),
    "silu_mul": Example(kernels.silu_mul, norm(2, 0), _ROWS, (0,), (8192, 14336)),
    "gelu_mul": Example(kernels.gelu_mul, norm(2, 0), _ROWS, (0,), (8192, 14336)),
    "rope": Example(kernels.rope, heads, _HEADS, (0, 2), (8, 32, 4096, 128)),
    "rope_interleaved": Example(
        functools.partial(kernels.rope, interleaved=True), heads, _HEADS, (0, 2), (8, 32, 4096, 128)
    ),
    "cross_entropy": Example(kernels.cross_entropy, logits, ("rows", "classes"), (0,), (8192, 128256)),
}
