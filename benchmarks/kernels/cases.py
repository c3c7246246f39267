"""What is measured: a kernel, its reference, the same of Liger-Kernel where it has one, inputs, and bytes it must move."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rung import kernels
from rung.kernels import reference

Inputs = Callable[[tuple[int, ...], torch.dtype], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """inputs(shape, dtype) -> tensors; forward, backward: tensors of x's size that have to be read or written, so that
    bytes = count x size of `inputs[0]` (None: not bound by memory). shapes: (small, large, others)."""

    name: str
    ours: Callable[..., Any]
    eager: Callable[..., Any]
    inputs: Inputs
    forward: float | None
    backward: float | None
    shapes: tuple[tuple[int, ...], ...]
    liger: Callable[..., Any] | None = None


def leaf(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)


def norm(count: int, parameters: int) -> Inputs:
    """`count` tensors of the shape, and as many parameters of its last dimension."""

    def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return (
            *(leaf(*shape, dtype=dtype) for _ in range(count)),
            *(leaf(shape[-1], dtype=dtype) for _ in range(parameters)),
        )

    return inputs


def heads(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q as Hugging Face has it, (batch, heads, tokens, d) with heads inside tokens, and cos, sin of d columns."""
    batch, head_count, tokens, dim = shape
    q = torch.randn(batch, tokens, head_count, dim, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
    angle = torch.outer(torch.arange(tokens), 1e4 ** -(torch.arange(dim // 2) / (dim // 2))).to("cuda")
    table = torch.cat((angle, angle), -1).unsqueeze(0)
    return q, table.cos().to(dtype), table.sin().to(dtype)


def logits(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return leaf(*shape, dtype=dtype), torch.randint(0, shape[1], shape[:1], device="cuda")


def projection(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rows, width, classes = shape
    weight = (torch.randn(classes, width, device="cuda", dtype=dtype) * width**-0.5).requires_grad_()
    return leaf(rows, width, dtype=dtype), weight, torch.randint(0, classes, (rows,), device="cuda")


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
    found: dict[str, Callable[..., Any]] = {
        "rms_norm (llama)": lambda x, w: F.liger_rms_norm(x, w, 1e-6, 0.0, "llama", False),
        "rms_norm (gemma)": lambda x, w: F.liger_rms_norm(x, w, 1e-6, 1.0, "gemma", False),
        "layer_norm": lambda x, w, b: F.liger_layer_norm(x, w, b, 1e-5),
        "silu_mul": F.liger_swiglu,
        "gelu_mul (tanh)": F.liger_geglu,
        "rope": lambda q, cos, sin: F.liger_rope(q, one_head(q), cos, sin)[0],
        "cross_entropy": F.liger_cross_entropy,
        "linear_cross_entropy": F.liger_fused_linear_cross_entropy,
    }
    if hasattr(F, "liger_fused_add_rms_norm"):
        found["add_rms_norm"] = lambda x, r, w: F.liger_fused_add_rms_norm(x, r, w, 1e-6, 0.0, "llama", False)
    return found


SMALL, LARGE = (512, 2048), (32768, 4096)
llama = {"cast_first": True}
gemma = {"offset": 1.0}
interleaved = {"interleaved": True}
erf = {"approximate": "none"}


def cases() -> list[Case]:
    part, theirs = functools.partial, liger()
    k, r = kernels, reference
    rows = (SMALL, LARGE)
    rope_shapes = ((1, 32, 128, 128), (8, 32, 4096, 128))
    table = [
        ("rms_norm (llama)", part(k.rms_norm, **llama), part(r.rms_norm, **llama), norm(1, 1), 2, 3, (*rows, (32768, 5120), (16384, 16384))),
        ("rms_norm (gemma)", part(k.rms_norm, **gemma), part(r.rms_norm, **gemma), norm(1, 1), 2, 3, rows),
        ("add_rms_norm", part(k.add_rms_norm, **llama), part(r.add_rms_norm, **llama), norm(2, 1), 4, 4, rows),
        ("layer_norm", k.layer_norm, r.layer_norm, norm(1, 2), 2, 3, (*rows, (262144, 768))),
        ("silu_mul", k.silu_mul, r.silu_mul, norm(2, 0), 3, 5, ((512, 8192), (16384, 11008))),
        ("gelu_mul (tanh)", k.gelu_mul, r.gelu_mul, norm(2, 0), 3, 5, ((512, 8192), (16384, 11008))),
        ("gelu_mul (erf)", part(k.gelu_mul, **erf), part(r.gelu_mul, **erf), norm(2, 0), 3, 5, ((512, 8192), (16384, 11008))),
        ("rope", k.rope, r.rope, heads, 2, 2, rope_shapes),
        ("rope (interleaved)", part(k.rope, **interleaved), part(r.rope, **interleaved), heads, 2, 2, rope_shapes),
        ("cross_entropy", k.cross_entropy, r.cross_entropy, logits, 1, 2, ((512, 32000), (8192, 128256))),
        ("linear_cross_entropy", k.linear_cross_entropy, r.linear_cross_entropy, projection, None, None, ((512, 1024, 32000), (4096, 2048, 128256))),
    ]  # fmt: skip
    return [Case(*row, liger=theirs.get(row[0])) for row in table]
