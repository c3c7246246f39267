"""Products of one row with a weight (GEMV): a linear layer as it decodes one token; forward only.

All that takes time is reading the weight, once. A program takes some rows of the weight, and as much of each as fits: so all its loads
are on their way before the first of them is used.
"""

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.operands import rows
from rung.kernels.ops import operator, wrap_triton


@triton.jit
def gemv_rows(
    X, W, BIAS, Y, n, k, w_row, BIASED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight = W + column[:, None] * w_row
    total = tl.zeros([BLOCK_N], tl.float32)
    # Loaded before the loop, and there before the next turn: inside of one block of instructions, the assembler moves loads to
    # where they are first used, and the memory waits for the arithmetic.
    at = tl.arange(0, BLOCK_K)[None, :]
    w = tl.load(weight + at, mask=(column[:, None] < n) & (at < k), other=0.0, eviction_policy="evict_first")
    x = tl.load(X + at, mask=at < k, other=0.0)
    for _ in range(0, k, BLOCK_K):
        total += tl.sum(w.to(tl.float32) * x.to(tl.float32), axis=1)
        at += BLOCK_K
        w = tl.load(weight + at, mask=(column[:, None] < n) & (at < k), other=0.0, eviction_policy="evict_first")
        x = tl.load(X + at, mask=at < k, other=0.0)
    if BIASED:
        total += tl.load(BIAS + column, mask=column < n, other=0.0).to(tl.float32)
    tl.store(Y + column, total.to(Y.dtype.element_ty), mask=column < n)


def _multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = _multiply_fake(x, weight, bias)
    x, weight = rows(x), rows(weight)
    bias = None if bias is None else bias.contiguous()
    n, k = weight.shape
    config = configs.gemv(n, k, configs.units(x.device), configs.warp_size(x.device))
    wrap_triton(gemv_rows)[(triton.cdiv(n, config["BLOCK_N"]),)](
        x, weight, x if bias is None else bias, out, n, k, w_row=weight.stride(0),
        BIASED=bias is not None, **config,
    )  # fmt: skip
    return out


def _multiply_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


apply = operator("gemv", _multiply, _multiply_fake)
