"""LayerNorm, forward and backward.

y = n * w + b,  n = (x - mean) * r,  r = 1 / sqrt(var + eps)

With g = dy * w:  dx = r * (g - mean(g) - n * mean(g * n)),  dw = sum over rows of dy * n,  db = sum over rows of dy.
The variance is taken around the mean (two passes over values in registers or cache), not as mean(x^2) - mean^2.
"""

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.column_sums import column_sums, column_sums_kernel
from rung.kernels.families.numbers import single, wide, wide_dtype
from rung.kernels.layout import rows
from rung.kernels.ops import differentiable, wrap_triton


@triton.jit
def layer_norm_forward(
    X, W, B, Y, MEAN, RSTD, n_rows, n_cols, x_stride, eps,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    mask = (row[:, None] < n_rows) & (col[None, :] < n_cols)
    x = wide(tl.load(X + row[:, None] * x_stride + col[None, :], mask=mask, other=0.0))
    mean = tl.sum(x, axis=1) / n_cols
    x = tl.where(mask, x - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(x * x, axis=1) / n_cols + single(eps))
    tl.store(MEAN + row, mean, mask=row < n_rows)
    tl.store(RSTD + row, rstd, mask=row < n_rows)
    y = x * rstd[:, None]
    if WEIGHT:
        y *= wide(tl.load(W + col, mask=col < n_cols, other=0.0))[None, :]
    if BIAS:
        y += wide(tl.load(B + col, mask=col < n_cols, other=0.0))[None, :]
    tl.store(Y + row[:, None] * n_cols + col[None, :], y.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_forward_long(
    X, W, B, Y, MEAN, RSTD, n_cols, x_stride, eps, WEIGHT: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], MEAN.dtype.element_ty)
    for first in range(0, n_cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        total += wide(tl.load(X + row * x_stride + col, mask=col < n_cols, other=0.0))
    mean = tl.sum(total, axis=0) / n_cols
    squares = tl.zeros([BLOCK], MEAN.dtype.element_ty)
    for first in range(0, n_cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        x = wide(tl.load(X + row * x_stride + col, mask=col < n_cols, other=0.0))
        x = tl.where(col < n_cols, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + single(eps))
    tl.store(MEAN + row, mean)
    tl.store(RSTD + row, rstd)
    for first in range(0, n_cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        y = (wide(tl.load(X + row * x_stride + col, mask=col < n_cols, other=0.0)) - mean) * rstd
        if WEIGHT:
            y *= wide(tl.load(W + col, mask=col < n_cols, other=0.0))
        if BIAS:
            y += wide(tl.load(B + col, mask=col < n_cols, other=0.0))
        tl.store(Y + row * n_cols + col, y.to(Y.dtype.element_ty), mask=col < n_cols)


@triton.jit
def layer_norm_backward(
    DY, X, W, MEAN, RSTD, DX, PART, n_rows, n_cols, dy_stride, x_stride,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    if WEIGHT:
        w = wide(tl.load(W + col, mask=col < n_cols, other=0.0))[None, :]
        dw = tl.zeros([ROWS, BLOCK], PART.dtype.element_ty)
    if BIAS:
        db = tl.zeros([ROWS, BLOCK], PART.dtype.element_ty)
    # STAGES rows are on their way at once: the next ones are fetched while these are reduced.
    for first in tl.range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        mask = (row[:, None] < n_rows) & (col[None, :] < n_cols)
        n = wide(tl.load(X + row[:, None] * x_stride + col[None, :], mask=mask, other=0.0))
        g = wide(tl.load(DY + row[:, None] * dy_stride + col[None, :], mask=mask, other=0.0))
        mean = tl.load(MEAN + row, mask=row < n_rows, other=0.0)[:, None]
        rstd = tl.load(RSTD + row, mask=row < n_rows, other=0.0)[:, None]
        n = tl.where(mask, (n - mean) * rstd, 0.0)
        if BIAS:
            db += g
        if WEIGHT:
            dw += g * n
            g *= w
        dx = rstd * (g - (tl.sum(g, axis=1) / n_cols)[:, None] - n * (tl.sum(g * n, axis=1) / n_cols)[:, None])
        tl.store(DX + row[:, None] * n_cols + col[None, :], dx.to(DX.dtype.element_ty), mask=mask)
    own = PART + tl.program_id(0).to(tl.int64) * n_cols  # of the weight's gradient; the bias's follow them
    if WEIGHT:
        tl.store(own + col, tl.sum(dw, axis=0), mask=col < n_cols)
    if BIAS:
        tl.store(own + tl.num_programs(0).to(tl.int64) * n_cols + col, tl.sum(db, axis=0), mask=col < n_cols)


@triton.jit
def layer_norm_backward_long(
    DY, X, W, MEAN, RSTD, DX, PART, n_rows, n_cols, dy_stride, x_stride,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # PART is zero at the beginning; every program adds up in rows of its own, the weight's gradient and then the bias's.
    DW = PART + tl.program_id(0).to(tl.int64) * n_cols
    DB = DW + tl.num_programs(0).to(tl.int64) * n_cols
    for at in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = at + tl.arange(0, ROWS).to(tl.int64)[:, None]
        mean = tl.load(MEAN + row, mask=row < n_rows, other=0.0)
        rstd = tl.load(RSTD + row, mask=row < n_rows, other=0.0)
        sums = tl.zeros([ROWS, BLOCK], PART.dtype.element_ty)
        dots = tl.zeros([ROWS, BLOCK], PART.dtype.element_ty)
        for first in range(0, n_cols, BLOCK):
            col = first + tl.arange(0, BLOCK)[None, :]
            mask = (row < n_rows) & (col < n_cols)
            n = (wide(tl.load(X + row * x_stride + col, mask=mask, other=0.0)) - mean) * rstd
            g = wide(tl.load(DY + row * dy_stride + col, mask=mask, other=0.0))  # 0 beyond the row
            if WEIGHT:
                g *= wide(tl.load(W + col, mask=col < n_cols, other=0.0))
            sums += g
            dots += g * n
        sum_mean = tl.sum(sums, axis=1, keep_dims=True) / n_cols
        dot_mean = tl.sum(dots, axis=1, keep_dims=True) / n_cols
        for first in range(0, n_cols, BLOCK):
            col = first + tl.arange(0, BLOCK)[None, :]
            mask = (row < n_rows) & (col < n_cols)
            n = (wide(tl.load(X + row * x_stride + col, mask=mask, other=0.0)) - mean) * rstd
            g = wide(tl.load(DY + row * dy_stride + col, mask=mask, other=0.0))
            if BIAS:
                db = tl.load(DB + col, mask=col < n_cols, other=0.0)
                tl.store(DB + col, db + tl.sum(g, axis=0, keep_dims=True), mask=col < n_cols)
            if WEIGHT:
                dw = tl.load(DW + col, mask=col < n_cols, other=0.0)
                tl.store(DW + col, dw + tl.sum(g * n, axis=0, keep_dims=True), mask=col < n_cols)
                g *= wide(tl.load(W + col, mask=col < n_cols, other=0.0))
            dx = rstd * (g - sum_mean - n * dot_mean)
            tl.store(DX + row * n_cols + col, dx.to(DX.dtype.element_ty), mask=mask)


def _forward(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, mean, rstd = _forward_fake(x, weight, bias, eps)
    flat = rows(x)
    w = flat if weight is None else weight.contiguous()
    b = flat if bias is None else bias.contiguous()
    n_rows, n_cols = flat.shape
    long = n_cols > configs.LONGEST_ROW
    config = configs.row_forward(n_cols, configs.warp_size(x.device))
    if long:
        wrap_triton(layer_norm_forward_long)[(n_rows,)](
            flat, w, b, y, mean, rstd, n_cols, flat.stride(0), eps, weight is not None, bias is not None, **config
        )
    else:
        wrap_triton(layer_norm_forward)[(triton.cdiv(n_rows, config["ROWS"]),)](
            flat, w, b, y, mean, rstd, n_rows, n_cols, flat.stride(0), eps,
            weight is not None, bias is not None, **config,
        )  # fmt: skip
    return y, mean, rstd


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = x.new_empty(x.shape[:-1], dtype=wide_dtype(x))
    return x.new_empty(x.shape), mean, mean.new_empty(mean.shape)


def _backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor, rstd: torch.Tensor, bias: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dx = x.new_empty(x.shape)
    flat, flat_dy = rows(x), rows(dy)
    w = flat if weight is None else weight.contiguous()
    n_rows, n_cols = flat.shape
    warp = configs.warp_size(x.device)
    long = n_cols > configs.LONGEST_ROW_BACKWARD
    config = configs.row_backward(n_cols, warp, max(x.element_size(), dy.element_size()))
    count = configs.programs(n_rows, config, warp, configs.units(x.device))
    make = rstd.new_zeros if long else rstd.new_empty
    partial = make((2, count if bias or weight is not None else 0, n_cols))
    arguments = (flat_dy, flat, w, mean, rstd, dx, partial, n_rows, n_cols, flat_dy.stride(0), flat.stride(0),
                 weight is not None, bias)  # fmt: skip
    if long:
        wrap_triton(layer_norm_backward_long)[(count,)](*arguments, **config)
    else:
        wrap_triton(layer_norm_backward)[(count,)](*arguments, **config)
    sums, grid, arguments, config = column_sums(partial, x.dtype if weight is None else weight.dtype)
    wrap_triton(column_sums_kernel)[grid](*arguments, **config)
    return dx, sums


def _backward_fake(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor, rstd: torch.Tensor, bias: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    sums = x.new_empty((2, x.shape[-1]), dtype=x.dtype if weight is None else weight.dtype)
    return x.new_empty(x.shape), sums


def _save(ctx, inputs, output) -> None:
    x, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.bias = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)


def _gradient(backward, ctx, dy, *_):
    x, weight, mean, rstd = ctx.saved_tensors
    dy = torch.zeros_like(x) if dy is None else dy
    dx, sums = backward(dy, x, weight, mean, rstd, ctx.bias is not None)
    return dx, sums[0] if weight is not None else None, sums[1].to(ctx.bias) if ctx.bias else None, None


apply = differentiable("layer_norm", _forward, _forward_fake, _save, _gradient, _backward, _backward_fake)
