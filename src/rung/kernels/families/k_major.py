"""A factor of a matrix product, copied so that the dimension which is summed lies side by side in memory."""

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.ops import INTERPRETED, operator, wrap_triton


@triton.jit
def k_major_copy(X, Y, n_rows, n_cols, x_row, x_col, ROWS: tl.constexpr, COLS: tl.constexpr):
    # Read along a row and written along a column, a tile at a time: both in whole cache lines.
    tiles = tl.cdiv(n_cols, COLS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tl.program_id(0) % tiles).to(tl.int64) * COLS + tl.arange(0, COLS)
    inside = (row[:, None] < n_rows) & (col[None, :] < n_cols)
    x = tl.load(X + row[:, None] * x_row + col[None, :] * x_col, mask=inside, other=0.0)
    mask = (col[:, None] < n_cols) & (row[None, :] < n_rows)
    tl.store(Y + col[:, None] * n_rows + row[None, :], tl.trans(x), mask=mask)


def _copied(x: torch.Tensor, dim: int) -> torch.Tensor:
    """x [m, n] as it is, in memory in which dimension `dim` (0 or 1) has stride 1."""
    out = _fake(x, dim)
    if not x.is_cuda and not INTERPRETED:
        return out.copy_(x)
    source, target = (x, out.t()) if dim == 0 else (x.t(), out)
    n_rows, n_cols = source.shape
    config = configs.tiles(configs.warp_size(x.device))
    grid = (triton.cdiv(n_rows, config["ROWS"]) * triton.cdiv(n_cols, config["COLS"]),)
    wrap_triton(k_major_copy)[grid](source, target, n_rows, n_cols, source.stride(0), source.stride(1), **config)
    return out


def _fake(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.new_empty(x.shape[::-1]).t() if dim == 0 else x.new_empty(x.shape)


k_major = operator("k_major", _copied, _fake, opaque=True, schema="(Tensor x, int dim) -> Tensor")
