"""The output projection with its cross-entropy: the logits of all rows are never in memory at once.

Rows go in chunks. torch multiplies (logits = h W^T), the kernels of `cross_entropy` give the loss and turn the chunk's
logits into their gradient where they lie, torch multiplies again (dh = d W, dW += d^T h). So the gradients exist when
the loss does, and the backward pass only scales them. They are computed only if they are asked for.
"""

import torch
import triton

from rung.kernels import configs
from rung.kernels.families.cross_entropy import cross_entropy_backward, cross_entropy_forward
from rung.kernels.families.numbers import wide_dtype
from rung.kernels.ops import differentiable, wrap_triton

CHUNK_BYTES = 256 << 20  # of logits at once: large enough for full GEMMs, and little beside what it saves


def chunk_rows(n_rows: int, n_cols: int, itemsize: int) -> int:
    """Rows of logits at once: those of CHUNK_BYTES, in multiples of 256 (the tiles of a GEMM), spread evenly."""
    most = max(256, CHUNK_BYTES // (n_cols * itemsize) // 256 * 256)
    chunks = -(-n_rows // most)
    return -(-n_rows // (256 * chunks)) * 256


def _forward(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, ignore_index: int,
    smoothing: float, mean: bool, hidden_grad: bool, weight_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    loss, d_hidden, d_weight, d_bias = _forward_fake(
        hidden, weight, bias, target, ignore_index, smoothing, mean, hidden_grad, weight_grad
    )
    n_rows, n_cols = hidden.shape[0], weight.shape[0]
    config = configs.classes(n_cols, configs.warp_size(hidden.device))
    target = target.contiguous()
    # Not a number is the mean of nothing, as torch has it.
    used = (target != ignore_index).sum()
    kind = wide_dtype(hidden)
    scale = 1.0 / used.to(kind) if mean else torch.ones((), dtype=kind, device=hidden.device)
    each = torch.empty(n_rows, dtype=kind, device=hidden.device)
    lse = torch.empty_like(each)
    step = chunk_rows(n_rows, n_cols, hidden.element_size()) if n_rows else 1
    bias_sum = torch.zeros(n_cols if d_bias.numel() else 0, dtype=kind, device=hidden.device)
    for first in range(0, n_rows, step):
        part = slice(first, min(first + step, n_rows))
        h, t = hidden[part], target[part]
        logits = torch.mm(h, weight.t()) if bias is None else torch.addmm(bias, h, weight.t())
        wrap_triton(cross_entropy_forward)[(h.shape[0],)](
            logits, t, each[part], lse[part], n_cols, n_cols, ignore_index, smoothing, smoothing != 0.0, **config
        )
        if not (hidden_grad or weight_grad):
            continue
        wrap_triton(cross_entropy_backward)[(h.shape[0] * triton.cdiv(n_cols, config["BLOCK"]),)](
            scale, logits, t, lse[part], logits, n_cols, n_cols, n_cols, 0, ignore_index, smoothing,
            smoothing != 0.0, **config,
        )  # fmt: skip
        if hidden_grad:
            torch.mm(logits, weight, out=d_hidden[part])
        if weight_grad:
            if first == 0:
                torch.mm(logits.t(), h, out=d_weight)
            else:
                d_weight.addmm_(logits.t(), h)
        if bias_sum.numel():
            bias_sum += logits.sum(0, dtype=kind)
    if not n_rows:  # no chunk has written it
        d_weight.zero_()
    d_bias.copy_(bias_sum)
    torch.mul(each.sum(), scale, out=loss)
    return loss, d_hidden, d_weight, d_bias


def _forward_fake(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, ignore_index: int,
    smoothing: float, mean: bool, hidden_grad: bool, weight_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    d_bias = weight.new_empty((0,)) if bias is None or not weight_grad else bias.new_empty(bias.shape)
    return (
        hidden.new_empty((), dtype=wide_dtype(hidden)),
        hidden.new_empty(hidden.shape if hidden_grad else (0,)),
        weight.new_empty(weight.shape if weight_grad else (0,)),
        d_bias,
    )


def _save(ctx, inputs, output) -> None:
    ctx.bias = inputs[2] is not None
    ctx.hidden_grad, ctx.weight_grad = inputs[7:]
    ctx.save_for_backward(*output[1:], (inputs[3] != inputs[4]).any())
    ctx.mark_non_differentiable(*output[1:])


def _gradient(backward, ctx, dloss, *_):
    d_hidden, d_weight, d_bias, counted = ctx.saved_tensors
    rest = (None,) * 6
    if dloss is None:
        return None, None, None, *rest
    # A sum of no rows, divided by their number, has an infinite slope; as in torch, it reaches nothing.
    dloss = torch.where(counted, dloss, 0.0)
    return (
        _scaled(d_hidden, dloss) if ctx.hidden_grad else None,
        _scaled(d_weight, dloss) if ctx.weight_grad else None,
        _scaled(d_bias, dloss) if ctx.weight_grad and ctx.bias else None,
        *rest,
    )


def _scaled(gradient: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """On a GPU a number on the device is rounded to the dtype of what it multiplies, and 65536, where a GradScaler begins, is
    infinite in float16."""
    wide = gradient.float() if gradient.dtype == torch.float16 else gradient
    return (wide * slope).to(gradient.dtype)


apply = differentiable("linear_cross_entropy", _forward, _forward_fake, _save, _gradient, opaque=True)
