"""Sums of partial sums: what programs added up apart, in one kernel that rounds once, at the end."""

from typing import Any

import torch
import triton
import triton.language as tl

from rung.kernels import configs


@triton.jit
def column_sums_kernel(PART, SUM, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    which = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([ROWS, BLOCK], PART.dtype.element_ty)
    for first in range(0, n_rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        mask = (row < n_rows) & (col < n_cols)
        total += tl.load(PART + (which * n_rows + row) * n_cols + col, mask=mask, other=0.0)
    found = tl.sum(total, axis=0, keep_dims=True)
    tl.store(SUM + which * n_cols + col, found.to(SUM.dtype.element_ty), mask=col < n_cols)


def column_sums(partial: torch.Tensor, dtype: torch.dtype) -> tuple[Any, ...]:
    """The sum over dimension 1 of (sums, programs, columns): memory for it, and grid, arguments and configuration of the
    launch that writes it."""
    count, n_rows, n_cols = partial.shape
    found = partial.new_empty((count, n_cols), dtype=dtype)
    config = configs.partial_sums()
    return found, (triton.cdiv(n_cols, config["BLOCK"]), count), (partial, found, n_rows, n_cols), config
