"""RMSNorm and residual add + RMSNorm, forward and backward.

y = v * r * (offset + w),  r = 1 / sqrt(mean(v^2) + eps),  v = x or x + residual (rounded to x's dtype, and returned)

With g = dy * (offset + w):  dv = r * (g - v * r^2 * mean(g * v)),  dw = sum over rows of dy * v * r.
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
def rms_norm_forward(
    X, R, W, Y, S, RSTD, n_rows, n_cols, x_stride, r_stride, eps, offset,
    RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, CAST_FIRST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)
    mask = (row[:, None] < n_rows) & (col[None, :] < n_cols)
    v = wide(tl.load(X + row[:, None] * x_stride + col[None, :], mask=mask, other=0.0))
    out = row[:, None] * n_cols + col[None, :]
    if RESIDUAL:
        v += wide(tl.load(R + row[:, None] * r_stride + col[None, :], mask=mask, other=0.0))
        v = v.to(S.dtype.element_ty)
        tl.store(S + out, v, mask=mask)
        v = wide(v)
    rstd = 1 / tl.sqrt(tl.sum(v * v, axis=1) / n_cols + single(eps))
    tl.store(RSTD + row, rstd, mask=row < n_rows)
    y = v * rstd[:, None]
    if CAST_FIRST:
        y = wide(y.to(X.dtype.element_ty))
    if WEIGHT:
        y *= single(offset) + wide(tl.load(W + col, mask=col < n_cols, other=0.0))[None, :]
    tl.store(Y + out, y.to(Y.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_forward_long(
    X, R, W, Y, S, RSTD, n_cols, x_stride, r_stride, eps, offset,
    RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, CAST_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    out = row * n_cols
    squares = tl.zeros([BLOCK], RSTD.dtype.element_ty)
    for first in range(0, n_cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        v = wide(tl.load(X + row * x_stride + col, mask=col < n_cols, other=0.0))
        if RESIDUAL:
            v += wide(tl.load(R + row * r_stride + col, mask=col < n_cols, other=0.0))
            v = v.to(S.dtype.element_ty)
            tl.store(S + out + col, v, mask=col < n_cols)
            v = wide(v)
        squares += v * v
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + single(eps))
    tl.store(RSTD + row, rstd)
    for first in range(0, n_cols, BLOCK):
        col = first + tl.arange(0, BLOCK)
        if RESIDUAL:  # what this thread itself stored
            v = wide(tl.load(S + out + col, mask=col < n_cols, other=0.0))
        else:
            v = wide(tl.load(X + row * x_stride + col, mask=col < n_cols, other=0.0))
        y = v * rstd
        if CAST_FIRST:
            y = wide(y.to(X.dtype.element_ty))
        if WEIGHT:
            y *= single(offset) + wide(tl.load(W + col, mask=col < n_cols, other=0.0))
        tl.store(Y + out + col, y.to(Y.dtype.element_ty), mask=col < n_cols)


@triton.jit
def rms_norm_backward(
    DY, DS, V, W, RSTD, DX, DW, n_rows, n_cols, dy_stride, ds_stride, v_stride, offset,
    SUM_GRAD: tl.constexpr, WEIGHT: tl.constexpr, CAST_FIRST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    if WEIGHT:
        w = single(offset) + wide(tl.load(W + col, mask=col < n_cols, other=0.0))[None, :]
        dw = tl.zeros([ROWS, BLOCK], DW.dtype.element_ty)
    # STAGES rows are on their way at once: the next ones are fetched while these are reduced.
    for first in tl.range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        mask = (row[:, None] < n_rows) & (col[None, :] < n_cols)
        v = wide(tl.load(V + row[:, None] * v_stride + col[None, :], mask=mask, other=0.0))
        g = wide(tl.load(DY + row[:, None] * dy_stride + col[None, :], mask=mask, other=0.0))
        rstd = tl.load(RSTD + row, mask=row < n_rows, other=0.0)[:, None]
        v *= rstd
        if WEIGHT:
            dw += g * (wide(v.to(V.dtype.element_ty)) if CAST_FIRST else v)
            g *= w
        dx = rstd * (g - v * (tl.sum(g * v, axis=1) / n_cols)[:, None])
        if SUM_GRAD:
            dx += wide(tl.load(DS + row[:, None] * ds_stride + col[None, :], mask=mask, other=0.0))
        tl.store(DX + row[:, None] * n_cols + col[None, :], dx.to(DX.dtype.element_ty), mask=mask)
    if WEIGHT:
        tl.store(DW + tl.program_id(0).to(tl.int64) * n_cols + col, tl.sum(dw, axis=0), mask=col < n_cols)


@triton.jit
def rms_norm_backward_wide(
    DY, DS, V, W, RSTD, DX, DW, n_rows, n_cols, dy_stride, ds_stride, v_stride, offset,
    SUM_GRAD: tl.constexpr, WEIGHT: tl.constexpr, CAST_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    here = col < n_cols
    dw = tl.zeros([BLOCK], DW.dtype.element_ty)
    for at in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        row = at + tl.zeros([], tl.int64)
        rstd = tl.load(RSTD + row)
        v = wide(tl.load(V + row * v_stride + col, mask=here, other=0.0))
        g = wide(tl.load(DY + row * dy_stride + col, mask=here, other=0.0))
        if WEIGHT:
            g *= single(offset) + wide(tl.load(W + col, mask=here, other=0.0))
        mean = tl.sum(g * v, axis=0) * rstd * rstd / n_cols
        # Registers have room for the weight's gradient or for the row; the row is in a cache still. Another eviction policy
        # keeps the compiler from taking the first loads' values.
        v = wide(tl.load(V + row * v_stride + col, mask=here, other=0.0, eviction_policy="evict_first"))
        g = wide(tl.load(DY + row * dy_stride + col, mask=here, other=0.0, eviction_policy="evict_first"))
        if WEIGHT:
            n = v * rstd
            dw += g * (wide(n.to(V.dtype.element_ty)) if CAST_FIRST else n)
            w = wide(tl.load(W + col, mask=here, other=0.0, eviction_policy="evict_last"))
            g *= single(offset) + w
        dx = rstd * (g - v * mean)
        if SUM_GRAD:
            dx += wide(tl.load(DS + row * ds_stride + col, mask=here, other=0.0))
        tl.store(DX + row * n_cols + col, dx.to(DX.dtype.element_ty), mask=here)
    if WEIGHT:
        tl.store(DW + tl.program_id(0).to(tl.int64) * n_cols + col, dw, mask=here)


@triton.jit
def rms_norm_backward_long(
    DY, DS, V, W, RSTD, DX, DW, n_rows, n_cols, dy_stride, ds_stride, v_stride, offset,
    SUM_GRAD: tl.constexpr, WEIGHT: tl.constexpr, CAST_FIRST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # DW is zero at the beginning; every program adds up in a row of its own.
    own = DW + tl.program_id(0).to(tl.int64) * n_cols
    for at in range(tl.program_id(0) * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = at + tl.arange(0, ROWS).to(tl.int64)[:, None]
        rstd = tl.load(RSTD + row, mask=row < n_rows, other=0.0)
        dots = tl.zeros([ROWS, BLOCK], RSTD.dtype.element_ty)
        for first in range(0, n_cols, BLOCK):
            col = first + tl.arange(0, BLOCK)[None, :]
            mask = (row < n_rows) & (col < n_cols)
            v = wide(tl.load(V + row * v_stride + col, mask=mask, other=0.0)) * rstd
            g = wide(tl.load(DY + row * dy_stride + col, mask=mask, other=0.0))
            if WEIGHT:
                g *= single(offset) + wide(tl.load(W + col, mask=col < n_cols, other=0.0))
            dots += g * v
        mean = tl.sum(dots, axis=1, keep_dims=True) / n_cols
        for first in range(0, n_cols, BLOCK):
            col = first + tl.arange(0, BLOCK)[None, :]
            mask = (row < n_rows) & (col < n_cols)
            v = wide(tl.load(V + row * v_stride + col, mask=mask, other=0.0)) * rstd
            g = wide(tl.load(DY + row * dy_stride + col, mask=mask, other=0.0))
            if WEIGHT:
                added = g * (wide(v.to(V.dtype.element_ty)) if CAST_FIRST else v)
                dw = tl.load(own + col, mask=col < n_cols, other=0.0)
                tl.store(own + col, dw + tl.sum(added, axis=0, keep_dims=True), mask=col < n_cols)
                g *= single(offset) + wide(tl.load(W + col, mask=col < n_cols, other=0.0))
            dx = rstd * (g - v * mean)
            if SUM_GRAD:
                dx += wide(tl.load(DS + row * ds_stride + col, mask=mask, other=0.0))
            tl.store(DX + row * n_cols + col, dx.to(DX.dtype.element_ty), mask=mask)


def _result_dtype(x: torch.Tensor, weight: torch.Tensor | None, cast_first: bool) -> torch.dtype:
    return torch.promote_types(x.dtype, weight.dtype) if cast_first and weight is not None else x.dtype


def _forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    cast_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, s, rstd = _forward_fake(x, residual, weight, eps, offset, cast_first)
    flat = rows(x)
    flat_r = flat if residual is None else rows(residual)
    w = flat if weight is None else weight.contiguous()
    n_rows, n_cols = flat.shape
    long = n_cols > configs.LONGEST_ROW
    config = configs.row_forward(n_cols, configs.warp_size(x.device))
    if long:
        wrap_triton(rms_norm_forward_long)[(n_rows,)](
            flat, flat_r, w, y, s, rstd, n_cols, flat.stride(0), flat_r.stride(0), eps, offset,
            residual is not None, weight is not None, cast_first, **config,
        )  # fmt: skip
    else:
        wrap_triton(rms_norm_forward)[(triton.cdiv(n_rows, config["ROWS"]),)](
            flat, flat_r, w, y, s, rstd, n_rows, n_cols, flat.stride(0), flat_r.stride(0), eps, offset,
            residual is not None, weight is not None, cast_first, **config,
        )  # fmt: skip
    return y, s, rstd


def _forward_fake(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    cast_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = x.new_empty(x.shape, dtype=_result_dtype(x, weight, cast_first))
    s = x.new_empty(x.shape if residual is not None else (0,))
    return y, s, x.new_empty(x.shape[:-1], dtype=wide_dtype(x))


def _backward(
    dy: torch.Tensor, ds: torch.Tensor | None, v: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor,
    offset: float, cast_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dx = v.new_empty(v.shape)
    flat, flat_dy = rows(v), rows(dy)
    flat_ds = flat_dy if ds is None else rows(ds)
    w = flat if weight is None else weight.contiguous()
    n_rows, n_cols = flat.shape
    warp = configs.warp_size(v.device)
    size = max(v.element_size(), dy.element_size())
    # A row and the weight's gradient have no room in registers in float64.
    whole = configs.LONGEST_ROW_BACKWARD < n_cols <= configs.LONGEST_ROW and size < 8
    long = n_cols > configs.LONGEST_ROW_BACKWARD and not whole
    config = configs.row_backward_wide(warp, size) if whole else configs.row_backward(n_cols, warp, size)
    count = configs.programs(n_rows, config, warp, configs.units(v.device))
    make = rstd.new_zeros if long else rstd.new_empty
    partial = make((count if weight is not None else 0, n_cols))
    arguments = (flat_dy, flat_ds, flat, w, rstd, dx, partial, n_rows, n_cols, flat_dy.stride(0), flat_ds.stride(0),
                 flat.stride(0), offset, ds is not None, weight is not None, cast_first)  # fmt: skip
    if whole:
        wrap_triton(rms_norm_backward_wide)[(count,)](*arguments, **config)
    elif long:
        wrap_triton(rms_norm_backward_long)[(count,)](*arguments, **config)
    else:
        wrap_triton(rms_norm_backward)[(count,)](*arguments, **config)
    dw, grid, arguments, config = column_sums(partial[None], v.dtype if weight is None else weight.dtype)
    wrap_triton(column_sums_kernel)[grid](*arguments, **config)
    return dx, dw[0]


def _backward_fake(
    dy: torch.Tensor, ds: torch.Tensor | None, v: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor,
    offset: float, cast_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    dw = v.new_empty((v.shape[-1],), dtype=v.dtype if weight is None else weight.dtype)
    return v.new_empty(v.shape), dw


def _save(ctx, inputs, output) -> None:
    x, residual, weight, _, ctx.offset, ctx.cast_first = inputs
    _, s, rstd = output
    ctx.residual = residual is not None
    ctx.save_for_backward(s if ctx.residual else x, weight, rstd)
    ctx.mark_non_differentiable(rstd)


def _gradient(backward, ctx, dy, ds, _):
    v, weight, rstd = ctx.saved_tensors
    dy = torch.zeros_like(v) if dy is None else dy
    dx, dw = backward(dy, ds if ctx.residual else None, v, weight, rstd, ctx.offset, ctx.cast_first)
    return dx, dx if ctx.residual else None, dw if weight is not None else None, None, None, None


apply = differentiable("rms_norm", _forward, _forward_fake, _save, _gradient, _backward, _backward_fake)
