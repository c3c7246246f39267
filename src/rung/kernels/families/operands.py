"""Tensors as the kernels see them: in which precision they are computed with, as rows with one distance between them and elements side by
side, as heads and tokens in either order."""

import torch
import triton
import triton.language as tl


@triton.jit
def single(number):
    """The number in float32. Triton passes Python's floats so, but Inductor passes them in float64 (torch 2.11), and what is
    computed with one of them would be float64 from there on."""
    return tl.full((), number, tl.float32)


@triton.jit
def wide(x):
    """x as it is computed with: float64 stays what it is, everything else becomes float32."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


def wide_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of what is computed from x and kept for the backward pass, or added up."""
    return torch.promote_types(x.dtype, torch.float32)


def rows(x: torch.Tensor) -> torch.Tensor:
    """x as (rows, columns) with unit column stride: a view where that is possible (a slice of a wider tensor is one),
    else a copy. The distance between rows is `stride(0)`."""
    if x.stride(-1) != 1 or not _one_row_stride(x):
        x = x.contiguous()
    return x if x.ndim == 2 else x.view(-1, x.shape[-1])


def _one_row_stride(x: torch.Tensor) -> bool:
    """Whether the leading dimensions lie one after the other, as `view` would have it."""
    shape, strides = x.shape[:-1], x.stride()[:-1]
    return all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(len(shape) - 1))


def along(x: torch.Tensor) -> torch.Tensor:
    """Memory for (batch, heads, tokens, d) of x's size: heads lie inside tokens where they do so in x, as after
    `view(b, t, h, d).transpose(1, 2)`."""
    batch, heads, tokens, dim = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty((batch, tokens, heads, dim)).transpose(1, 2)
    return x.new_empty((batch, heads, tokens, dim))
