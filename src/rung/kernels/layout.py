"""Tensors as the kernels see them: rows with one distance between them, elements side by side, heads and tokens in either order."""

import torch


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
