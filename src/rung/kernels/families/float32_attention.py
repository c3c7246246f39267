"""Attention in float32 by TF32 products in the one order in which Hopper takes them; forward and backward.

A tensor core of sm90 multiplies TF32 only where what is summed lies side by side in both factors (PTX, wgmma: no transpose of
tf32 operands). Of attention's products, those of scores and weights' gradients find it so; the others sum over keys or
queries, and read copies here that have those side by side. The copies are rounded to TF32 on their way, as is what is kept
in registers: the tensor core cuts off what it does not take, which shifts every sum towards zero. A row of scores never
leaves the chip (Dao 2023, FlashAttention-2), and blocks that the causal mask hides are not computed.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.operands import along, single
from rung.kernels.ops import INTERPRETED, differentiable, wrap_triton

PADDED = 128  # what a copy's rows are a multiple of: no block reads behind its end


@triton.jit
def _rounded(x, TF32: tl.constexpr):
    if TF32:
        x = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def _dot(a, b, TF32: tl.constexpr):
    return tl.dot(a, tl.trans(b), input_precision="tf32" if TF32 else "ieee")


@triton.jit
def _added(a, b, c, TF32: tl.constexpr):
    return tl.dot(_rounded(a, TF32), tl.trans(b), c, input_precision="tf32" if TF32 else "ieee")


@triton.jit
def _rows(X, stride, row, length, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    at = X + row[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(at) if EVEN else tl.load(at, mask=row[:, None] < length, other=0.0)


@triton.jit
def _turned(XT, pair, row, padded, WIDTH: tl.constexpr):
    return tl.load(XT + pair * WIDTH * padded + tl.arange(0, WIDTH)[:, None] * padded + row[None, :])


@triton.jit
def _each(X, row, length, EVEN: tl.constexpr):
    # infinite behind the end: what is weighed against it weighs nothing
    return tl.load(X + row) if EVEN else tl.load(X + row, mask=row < length, other=float("inf"))


@triton.jit
def _store(Y, stride, row, length, y, WIDTH: tl.constexpr):
    tl.store(Y + row[:, None] * stride + tl.arange(0, WIDTH)[None, :], y, mask=row[:, None] < length)


@triton.jit
def float32_attention_turn(
    X, Y, XT, SUM, heads, length, padded, x_batch, x_head, x_row, y_batch, y_head, y_row,
    SUMMED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    # XT [batch, heads, WIDTH, padded] from X [batch, heads, length, WIDTH]; SUM: of X * Y over a row
    pair = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x = _rows(X + pair // heads * x_batch + pair % heads * x_head, x_row, row, length, WIDTH, False)
    at = XT + pair * WIDTH * padded + tl.arange(0, WIDTH)[:, None] * padded + row[None, :]
    tl.store(at, _rounded(tl.trans(x), TF32))
    if SUMMED:
        y = _rows(Y + pair // heads * y_batch + pair % heads * y_head, y_row, row, length, WIDTH, False)
        tl.store(SUM + pair * padded + row, tl.sum(x * y, 1))


@triton.jit
def float32_attention_forward(
    Q, K, VT, OUT, LSE, heads, group, length, padded, scale, q_batch, q_head, q_row, k_batch, k_head, k_row,
    o_batch, o_head, o_row, CAUSAL: tl.constexpr, EVEN: tl.constexpr, WIDTH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    batch, head = pair // heads, pair % heads
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * M  # those with most keys begin
    row = first + tl.arange(0, M)
    kv_head = head // group
    K += batch * k_batch + kv_head * k_head
    q = _rounded(_rows(Q + batch * q_batch + head * q_head, q_row, row, length, WIDTH, EVEN), TF32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, WIDTH], tl.float32)
    factor = single(scale) * 1.4426950408889634  # log2(e): weights are powers of 2
    end = tl.minimum(first + M, length) if CAUSAL else length
    for at in tl.range(0, end, N, num_stages=STAGES):
        key = at + tl.arange(0, N)
        k = _rows(K, k_row, key, length, WIDTH, EVEN)
        score = _dot(q, k, TF32) * factor
        seen = key[None, :] <= row[:, None] if CAUSAL else key[None, :] < length
        score = tl.where(seen, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))  # finite: every query sees the first key
        weight = tl.exp2(score - new[:, None])
        shrunk = tl.exp2(top - new)
        total = total * shrunk + tl.sum(weight, 1)
        vt = _turned(VT, batch * (heads // group) + kv_head, key, padded, WIDTH)
        out = _added(weight, vt, out * shrunk[:, None], TF32)
        top = new
    _store(OUT + batch * o_batch + head * o_head, o_row, row, length, out / total[:, None], WIDTH)
    tl.store(LSE + pair * padded + row, top + tl.log2(total), mask=row < length)


@triton.jit
def float32_attention_backward(
    A, A2, B, B2, BT, LSE, SUM, GRAD, heads, group, length, padded, scale, a_batch, a_head, a_row, a2_batch, a2_head,
    a2_row, b_batch, b_head, b_row, b2_batch, b2_head, b2_row, g_batch, g_head, g_row,
    OF: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr, WIDTH: tl.constexpr, TF32: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # One gradient at a time, M of its rows a program. OF queries: rows A = q, A2 = the slope of the result; blocks B = k, B2 = v,
    # BT = k turned. OF keys: A = k, A2 = v; B = q, B2 = the slope, BT = q turned. OF values: A = k; B = q, BT = the slope turned.
    pair = tl.program_id(0).to(tl.int64)
    row_heads = heads if OF == "q" else heads // group
    batch, head = pair // row_heads, pair % row_heads
    # Those with most to do begin.
    first = (tl.num_programs(1) - 1 - tl.program_id(1) if OF == "q" else tl.program_id(1)) * M
    row = first + tl.arange(0, M)
    a = _rounded(_rows(A + batch * a_batch + head * a_head, a_row, row, length, WIDTH, EVEN), TF32)
    if OF != "v":
        a2 = _rounded(_rows(A2 + batch * a2_batch + head * a2_head, a2_row, row, length, WIDTH, EVEN), TF32)
    grad = tl.zeros([M, WIDTH], tl.float32)
    factor = single(scale) * 1.4426950408889634  # log2(e): weights are powers of 2
    begin = 0
    end = length
    if CAUSAL and OF == "q":
        end = tl.minimum(first + M, length)
    if CAUSAL and OF != "q":
        begin = first // N * N
    if OF == "q":
        lse = _each(LSE + pair * padded, row, length, EVEN)[:, None]
        summed = tl.load(SUM + pair * padded + row)[:, None]
    for k in range(1 if OF == "q" else group):
        # of B: keys' heads serve several of queries
        other = head // group if OF == "q" else head * group + k
        other_pair = batch * (heads // group if OF == "q" else heads) + other
        for at in tl.range(begin, end, N, num_stages=STAGES):
            col = at + tl.arange(0, N)
            b = _rows(B + batch * b_batch + other * b_head, b_row, col, length, WIDTH, EVEN)
            if OF != "q":
                lse = _each(LSE + other_pair * padded, col, length, EVEN)[None, :]
            weight = tl.exp2(_dot(a, b, TF32) * factor - lse)
            if CAUSAL:
                seen = col[None, :] <= row[:, None] if OF == "q" else col[None, :] >= row[:, None]
                weight = tl.where(seen, weight, 0.0)
            elif not EVEN:
                weight = tl.where(col[None, :] < length, weight, 0.0)
            if OF != "v":
                b2 = _rows(B2 + batch * b2_batch + other * b2_head, b2_row, col, length, WIDTH, EVEN)
                if OF != "q":
                    summed = tl.load(SUM + other_pair * padded + col)[None, :]
                weight *= _dot(a2, b2, TF32) - summed
            bt = _turned(BT, other_pair, col, padded, WIDTH)
            grad = _added(weight, bt, grad, TF32)
    if OF != "v":
        grad *= single(scale)
    _store(GRAD + batch * g_batch + head * g_head, g_row, row, length, grad, WIDTH)


def _dense(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """With the elements of a row side by side, and a head's rows near enough to each other for offsets of 32 bits."""
    return tuple(x if x.stride(-1) == 1 and x.shape[2] * x.stride(2) < 2**31 else x.contiguous() for x in given)


def _padded(length: int) -> int:
    return int(triton.cdiv(length, PADDED)) * PADDED


def _turn(x: torch.Tensor, tf32: bool, other: torch.Tensor | None = None) -> tuple[Any, ...]:
    """x [batch, heads, length, d] as [batch, heads, d, padded], zeros at the end; with another, the sums of x * other, too. Then
    grid, arguments and configuration of the launch that writes them."""
    batch, heads, length, dim = x.shape
    padded, y = _padded(length), x if other is None else other
    turned = x.new_empty((batch, heads, dim, padded))
    total = x.new_empty((batch, heads, padded)) if other is not None else turned
    config = {"SUMMED": other is not None, "WIDTH": dim, "TF32": tf32, **configs.turning()}
    arguments = (x, y, turned, total, heads, length, padded, *x.stride()[:3], *y.stride()[:3])
    return turned, total, (batch * heads, padded // config["ROWS"]), arguments, config


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, tf32: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    tf32 = tf32 and not INTERPRETED
    out, lse = _attend_fake(q, k, v, causal, scale, tf32)
    q, k, v = _dense(q, k, v)
    batch, heads, length, dim = q.shape
    config = configs.float32_attention("forward", dim, tf32)
    turned, _, grid, arguments, options = _turn(v, tf32)
    wrap_triton(float32_attention_turn)[grid](*arguments, **options)
    wrap_triton(float32_attention_forward)[(batch * heads, triton.cdiv(length, config["M"]))](
        q, k, turned, out, lse, heads, heads // k.shape[1], length, lse.shape[2], scale,
        *q.stride()[:3], *k.stride()[:3], *out.stride()[:3],
        CAUSAL=causal, EVEN=length % PADDED == 0, WIDTH=dim, TF32=tf32, **config,
    )  # fmt: skip
    return out, lse


def _attend_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, tf32: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and for each query the logarithm to base 2 of the sum of its exponentials."""
    return along(q), q.new_empty((*q.shape[:2], _padded(q.shape[2])))


def _back(
    slope: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    causal: bool, scale: float, tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    tf32 = tf32 and not INTERPRETED
    found = _back_fake(slope, q, k, v, out, lse, causal, scale, tf32)
    slope, q, k, v = _dense(slope, q, k, v)
    heads, length, dim = q.shape[1:]
    turns = _turn(slope, tf32, out), _turn(q, tf32), _turn(k, tf32)
    for _, _, grid, arguments, options in turns:
        wrap_triton(float32_attention_turn)[grid](*arguments, **options)
    (slope_t, total, *_), (q_t, *_), (k_t, *_) = turns
    sides = {"q": (q, slope, k, v, k_t), "k": (k, v, q, slope, q_t), "v": (k, k, q, q, slope_t)}
    for (of, side), grad in zip(sides.items(), found, strict=True):
        config = configs.float32_attention(of, dim, tf32)
        a, a2, b, b2, _ = side
        wrap_triton(float32_attention_backward)[(a.shape[0] * a.shape[1], triton.cdiv(length, config["M"]))](
            *side, lse, total, grad, heads, heads // k.shape[1], length, lse.shape[2], scale,
            *a.stride()[:3], *a2.stride()[:3], *b.stride()[:3], *b2.stride()[:3], *grad.stride()[:3],
            OF=of, CAUSAL=causal, EVEN=length % PADDED == 0, WIDTH=dim, TF32=tf32, **config,
        )  # fmt: skip
    return found


def _back_fake(
    slope: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return along(q), along(k), along(v)


def _save(ctx, inputs, output) -> None:
    q, k, v, ctx.causal, ctx.scale, ctx.tf32 = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradient(backward, ctx, slope, _):
    if slope is None:
        return (None,) * 6
    return (*backward(slope, *ctx.saved_tensors, ctx.causal, ctx.scale, ctx.tf32), None, None, None)


apply = differentiable("float32_attention", _attend, _attend_fake, _save, _gradient, _back, _back_fake)
