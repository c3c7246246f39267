"""Softmax cross-entropy of rows of logits, forward and backward.

loss = (1 - e) (lse - x_t) + e (lse - mean(x)),  lse = log sum exp(x),  e the label smoothing; 0 where t is ignored.
dx = dloss (exp(x - lse) - (1 - e) [j = t] - e / n)

The sum of exponentials is kept relative to the largest logit so far, so a row is read once. Loss and lse are float32, of float64 float64.
A target that is neither a class nor `ignore_index` gives NaN, and reads nothing outside of the row.
"""

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.operands import rows, single, wide, wide_dtype
from rung.kernels.ops import differentiable, wrap_triton


@triton.jit
def cross_entropy_forward(
    LOGITS, TARGET, LOSS, LSE, n_cols, row_stride, ignore_index, smoothing, SMOOTH: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(TARGET + row)
    logits = LOGITS + row * row_stride
    # An ignored row has nothing to be read for.
    end = tl.where(target == ignore_index, 0, n_cols)
    largest = tl.full([BLOCK], float("-inf"), LSE.dtype.element_ty)
    total = tl.zeros([BLOCK], LSE.dtype.element_ty)
    plain = tl.zeros([BLOCK], LSE.dtype.element_ty)
    for first in range(0, end, BLOCK):
        col = first + tl.arange(0, BLOCK)
        x = wide(tl.load(logits + col, mask=col < n_cols, other=float("-inf")))
        new = tl.maximum(largest, x)
        base = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(largest - base) + tl.exp(x - base)
        largest = new
        if SMOOTH:
            plain += tl.where(col < n_cols, x, 0.0)
    top = tl.max(largest, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.where(target == ignore_index, 1.0, tl.sum(total * tl.exp(largest - base), axis=0))
    lse = base + tl.log(total)
    valid = (target >= 0) & (target < n_cols)
    picked = wide(tl.load(logits + target, mask=valid & (target != ignore_index), other=0.0))
    loss = lse - picked
    if SMOOTH:
        smoothing = single(smoothing)
        loss = (1 - smoothing) * loss + smoothing * (lse - tl.sum(plain, axis=0) / n_cols)
    loss = tl.where(valid, loss, float("nan"))
    tl.store(LOSS + row, tl.where(target == ignore_index, 0.0, loss))
    tl.store(LSE + row, tl.where(target == ignore_index, 0.0, lse))


@triton.jit
def cross_entropy_backward(
    DLOSS, LOGITS, TARGET, LSE, DLOGITS, n_cols, row_stride, d_stride, dloss_stride, ignore_index, smoothing,
    SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(n_cols, BLOCK)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    col = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(TARGET + row)
    dloss = wide(tl.load(DLOSS + row * dloss_stride))
    dloss = tl.where((target >= 0) & (target < n_cols), dloss, float("nan"))
    used = target != ignore_index
    # Bounded as in the forward: a mask of `col < n_cols` and `used` is one that the interpreter of Triton 3.9 does not take.
    end = tl.where(used, n_cols, 0)
    x = wide(tl.load(LOGITS + row * row_stride + col, mask=col < end, other=0.0))
    d = tl.exp(x - tl.load(LSE + row))
    if SMOOTH:
        smoothing = single(smoothing)
        d -= tl.where(col == target, 1 - smoothing, 0.0) + smoothing / n_cols
    else:
        d -= tl.where(col == target, 1.0, 0.0)
    d = tl.where(used, d * dloss, 0.0)
    tl.store(DLOGITS + row * d_stride + col, d.to(DLOGITS.dtype.element_ty), mask=col < n_cols)


def _forward(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    loss, lse = _forward_fake(logits, target, ignore_index, smoothing)
    flat, target = rows(logits), target.contiguous()
    n_rows, n_cols = flat.shape
    config = configs.classes(n_cols, configs.warp_size(flat.device))
    wrap_triton(cross_entropy_forward)[(n_rows,)](
        flat, target, loss, lse, n_cols, flat.stride(0), ignore_index, smoothing, smoothing != 0.0, **config
    )
    return loss, lse


def _forward_fake(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    loss = logits.new_empty(target.shape, dtype=wide_dtype(logits))
    return loss, loss.new_empty(loss.shape)


def _backward(
    dloss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    smoothing: float,
) -> torch.Tensor:
    d = logits.new_empty(logits.shape)
    # As a mean has it, the gradient of every row may be one number: a stride of 0.
    flat, target, dloss = rows(logits), target.contiguous(), dloss.reshape(-1)
    n_rows, n_cols = flat.shape
    config = configs.classes(n_cols, configs.warp_size(flat.device))
    wrap_triton(cross_entropy_backward)[(n_rows * triton.cdiv(n_cols, config["BLOCK"]),)](
        dloss, flat, target, lse, d, n_cols, flat.stride(0), n_cols, dloss.stride(0), ignore_index, smoothing,
        smoothing != 0.0, **config,
    )  # fmt: skip
    return d


def _backward_fake(
    dloss: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    ignore_index: int,
    smoothing: float,
) -> torch.Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx, inputs, output) -> None:
    logits, target, ctx.ignore_index, ctx.smoothing = inputs
    ctx.save_for_backward(logits, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(backward, ctx, dloss, _):
    logits, target, lse = ctx.saved_tensors
    d = None if dloss is None else backward(dloss, logits, target, lse, ctx.ignore_index, ctx.smoothing)
    return d, None, None, None


apply = differentiable("cross_entropy", _forward, _forward_fake, _save, _gradient, _backward, _backward_fake)
