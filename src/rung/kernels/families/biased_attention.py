"""Attention with a bias that is added to the scores and may learn: forward, and gradients of queries, keys, values and bias.

torch has one kernel for a bias that needs a gradient, the memory-efficient one. It writes that gradient for every sequence of the
batch, in a copy of the bias, and sums afterwards. Here the blocks are those of FlashAttention-2 (Dao 2023). Where one block holds all keys, a
program goes through several sequences and sums the bias' gradient in registers. Where it holds all queries, too, the same program
computes all four gradients. Sums are in float32 and in a fixed order; no kernel uses atomics. Dropout's mask is drawn by a seed in every
kernel, and stored nowhere.

The kernels themselves are in `biased_attention_kernels.py`.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton

from rung.kernels import configs
from rung.kernels.dropout import keep_probability
from rung.kernels.families.biased_attention_kernels import (
    biased_attention_backward_kv,
    biased_attention_backward_q,
    biased_attention_forward,
)
from rung.kernels.ops import INTERPRETED, differentiable, wrap_triton

REUSED = 4  # a bias that at least so many sequences read is worth an aligned copy


def _dense(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """With the elements of a row side by side, and a head's rows near enough to each other for offsets of 32 bits."""
    return tuple(x if x.stride(-1) == 1 and x.shape[2] * x.stride(2) < 2**31 else x.contiguous() for x in given)


def _tokens_first(x: torch.Tensor, dim: int) -> torch.Tensor:
    """[batch, heads, tokens, dim] for x [batch, heads, tokens, ...], in memory with heads inside tokens: joining them copies nothing."""
    batch, heads, tokens, _ = x.shape
    return x.new_empty((batch, tokens, heads, dim)).transpose(1, 2)


def _aligned(bias: torch.Tensor) -> bool:
    return bool(bias.stride(3) == 1 and bias.stride(2) % configs.ROW == 0)


def _readable(bias: torch.Tensor, batch: int) -> tuple[torch.Tensor, int]:
    """The bias as the kernels read it, and how many columns of it they may read. An odd distance between rows costs a load
    for each element, so a bias of many sequences is copied into aligned rows. The columns that are added hide keys."""
    rows, columns = bias.shape[2:]
    if not (_aligned(bias) and columns % configs.ROW == 0) and batch >= REUSED * bias.shape[0]:
        return F.pad(bias, (0, configs.padded(columns) - columns), value=float("-inf")).contiguous(), configs.padded(
            columns
        )
    far = rows * bias.stride(2) + columns * bias.stride(3) >= 2**31
    return (bias.contiguous() if far else bias), columns


def _strides(bias: torch.Tensor) -> tuple[int, int, int, int]:
    """A dimension of one element is broadcast; rows and columns are never."""
    batch, head = (bias.stride(k) if bias.shape[k] > 1 else 0 for k in (0, 1))
    return batch, head, bias.stride(2), bias.stride(3)


def _sizes(q: torch.Tensor, v: torch.Tensor, dropout: bool) -> dict[str, Any]:
    """What the kernels are compiled for."""
    dim, v_dim = q.shape[3], v.shape[3]
    return {
        "DROPOUT": dropout,
        "DIM": dim,
        "V_DIM": v_dim,
        "WIDTH": max(16, configs.power_of_2(dim)),
        "V_WIDTH": max(16, configs.power_of_2(v_dim)),
        # The interpreter multiplies the bits of bfloat16 as whole numbers.
        "EXACT": q.dtype == torch.float32 or (INTERPRETED and q.dtype == torch.bfloat16),
    }


def _config(part: str, q: torch.Tensor, k: torch.Tensor, sizes: dict[str, Any]) -> dict[str, Any]:
    width = max(sizes["WIDTH"], sizes["V_WIDTH"])
    return configs.biased_attention(part, q.shape[2], k.shape[2], width, q.dtype == torch.float32, sizes["DROPOUT"])


def _dropped(q: torch.Tensor, dropout_p: float, seed: torch.Tensor | None) -> tuple[torch.Tensor, float, bool]:
    """The seed as kernels get it (which none reads without dropout), the probability that a weight is kept, and whether one is dropped."""
    keep = keep_probability(dropout_p)
    if seed is None or keep == 1.0:
        return q, 1.0, False
    return seed, keep, True


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, lse = _attend_fake(q, k, v, bias, scale, dropout_p, seed)
    q, k, v = _dense(q, k, v)
    batch, heads, m, _ = q.shape
    bias, columns = _readable(bias, batch)
    drawn, keep, dropout = _dropped(q, dropout_p, seed)
    sizes = _sizes(q, v, dropout)
    config = _config("forward", q, k, sizes)
    one = k.shape[2] <= config["BLOCK_N"]
    wrap_triton(biased_attention_forward)[(batch * heads * triton.cdiv(m, config["BLOCK_M"]),)](
        q, k, v, bias, out, lse, drawn, heads, m, k.shape[2], columns, scale, keep,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_strides(bias), *out.stride()[:3],
        BIAS_FIRST=one or not _aligned(bias), ONE=one, **sizes, **config,
    )  # fmt: skip
    return out, lse


def _attend_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The result, and for each query the logarithm to base 2 of the sum of its exponentials."""
    return _tokens_first(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _back(
    slope: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, scale: float, dropout_p: float, seed: torch.Tensor | None, bias_learns: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    grad_q, grad_k, grad_v, grad_bias = _back_fake(slope, q, k, v, bias, out, lse, scale, dropout_p, seed, bias_learns)
    slope, q, k, v, out = _dense(slope, q, k, v, out)
    batch, heads, m, _ = q.shape
    n = k.shape[2]
    readable, columns = _readable(bias, batch)
    drawn, keep, dropout = _dropped(q, dropout_p, seed)
    sizes = _sizes(q, v, dropout)
    config = _config("q", q, k, sizes)
    blocks = triton.cdiv(m, config["BLOCK_M"])
    one = n <= config["BLOCK_N"]  # block of keys
    whole = one and m <= config["BLOCK_M"]
    each, how, part = 1, "none", q  # which nothing is written to
    if bias_learns:
        width = max(sizes["WIDTH"], sizes["V_WIDTH"])
        each, how, part = _bias_parts(q, bias, grad_bias, n, heads * blocks if one else 0, width)
    delta = torch.empty_like(lse)
    wrap_triton(biased_attention_backward_q)[(heads * blocks * triton.cdiv(batch, each),)](
        q, k, v, readable, slope, out, lse, delta, grad_q, grad_k, grad_v, part, drawn,
        batch, heads, m, n, columns, part.shape[3], each, scale, keep,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_strides(readable), *slope.stride()[:3], *out.stride()[:3],
        *grad_q.stride()[:3], *grad_k.stride()[:3], *grad_v.stride()[:3],
        *(part.stride()[:3] if bias_learns else (0, 0, 0)),
        BIAS_GRADIENT=how, ONE=one, WHOLE=whole, **sizes, **config,
    )  # fmt: skip
    if not whole:
        config = _config("kv", q, k, sizes)
        wrap_triton(biased_attention_backward_kv)[(batch * heads * triton.cdiv(n, config["BLOCK_N"]),)](
            q, k, v, readable, slope, lse, delta, grad_k, grad_v, drawn, heads, m, n, columns, scale, keep,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_strides(readable), *slope.stride()[:3],
            *grad_k.stride()[:3], *grad_v.stride()[:3], **sizes, **config,
        )  # fmt: skip
    if bias_learns and part is not grad_bias:
        summed = [axis for axis in (0, 1) if bias.shape[axis] == 1]
        total = part[..., :n].sum(summed, keepdim=True, dtype=torch.float32)  # one kernel under Inductor
        grad_bias = total.to(bias.dtype).contiguous()
    return grad_q, grad_k, grad_v, grad_bias


def _bias_parts(
    q: torch.Tensor, bias: torch.Tensor, grad_bias: torch.Tensor, n: int, programs: int, width: int
) -> tuple[int, str, torch.Tensor]:
    """How many sequences a program goes through, what it does with the gradients of their scores, and where it writes them.
    programs: those that a sequence needs, 0 where a program cannot sum."""
    batch, heads, m, _ = q.shape
    if bias.shape[0] == batch and bias.shape[1] == heads:
        return 1, "each", grad_bias
    each = configs.sequences(batch, programs, configs.units(q.device), width) if programs and bias.shape[0] == 1 else 1
    if each > 1:
        return each, "sum", q.new_empty((triton.cdiv(batch, each), heads, m, configs.padded(n)), dtype=torch.float32)
    return 1, "each", q.new_empty((batch, heads, m, configs.padded(n)))


def _back_fake(
    slope: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, scale: float, dropout_p: float, seed: torch.Tensor | None, bias_learns: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    grads = [_tokens_first(x, x.shape[3]) for x in (q, k, v)]
    return grads[0], grads[1], grads[2], bias.new_empty(bias.shape if bias_learns else (0,))


def _save(ctx, inputs, output) -> None:
    q, k, v, bias, ctx.scale, ctx.dropout_p, seed = inputs
    ctx.save_for_backward(q, k, v, bias, *output, seed)


def _gradient(backward, ctx, slope, _):
    if slope is None:
        return (None,) * 7
    *tensors, seed = ctx.saved_tensors
    learns = ctx.needs_input_grad[3]
    *grads, grad_bias = backward(slope, *tensors, ctx.scale, ctx.dropout_p, seed, learns)
    return (*grads, grad_bias if learns else None, None, None, None)


apply = differentiable("biased_attention", _attend, _attend_fake, _save, _gradient, _back, _back_fake)
