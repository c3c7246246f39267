"""Rotary position embedding, forward and backward, for both layouts of the pairs.

A pair (a, b) of a head becomes (a cos - b sin', b cos' + a sin): elements i and i + d/2 in the half-split layout,
2i and 2i + 1 in the interleaved one. cos and sin have d columns (a's and b's own: cos, cos') or d/2 (cos' = cos). The
backward pass is the transposed rotation, by the same kernel; `rotate_into_join` has it write where gradients are joined.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.operands import along, wide
from rung.kernels.ops import differentiable, operator, wrap_triton


@triton.jit
def rope_rotate(
    X, COS, SIN, Y, heads, tokens, half, x_batch, x_head, x_token, y_batch, y_head, y_token,
    cos_batch, cos_token, sin_batch, sin_token,
    BACKWARD: tl.constexpr, INTERLEAVED: tl.constexpr, FULL: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // tokens).to(tl.int64)
    token = (tl.program_id(0) % tokens).to(tl.int64)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, HALF)
    # Where a's cosine lies, and how far on that of b.
    at = i * (2 if INTERLEAVED and FULL else 1)
    on = (1 if INTERLEAVED else half) if FULL else 0
    cos = COS + batch * cos_batch + token * cos_token + at
    sin = SIN + batch * sin_batch + token * sin_token + at
    cos_a = wide(tl.load(cos, mask=i < half, other=0.0))[None, :]
    sin_a = wide(tl.load(sin, mask=i < half, other=0.0))[None, :]
    if FULL:
        cos_b = wide(tl.load(cos + on, mask=i < half, other=0.0))[None, :]
        sin_b = wide(tl.load(sin + on, mask=i < half, other=0.0))[None, :]
    else:
        cos_b, sin_b = cos_a, sin_a
    x = X + batch * x_batch + token * x_token + head * x_head
    y = Y + batch * y_batch + token * y_token + head * y_head
    if INTERLEAVED:
        both = tl.arange(0, 2 * HALF)[None, :]
        mask = (head < heads) & (both < 2 * half)
        pairs = tl.reshape(wide(tl.load(x + both, mask=mask, other=0.0)), [HEADS, HALF, 2])
        a, b = tl.split(pairs)
    else:
        mask = (head < heads) & (i[None, :] < half)
        a = wide(tl.load(x + i[None, :], mask=mask, other=0.0))
        b = wide(tl.load(x + half + i[None, :], mask=mask, other=0.0))
    if BACKWARD:
        new_a = a * cos_a + b * sin_b
        new_b = b * cos_b - a * sin_a
    else:
        new_a = a * cos_a - b * sin_a
        new_b = b * cos_b + a * sin_b
    if INTERLEAVED:
        pairs = tl.reshape(tl.join(new_a, new_b), [HEADS, 2 * HALF])
        tl.store(y + both, pairs.to(Y.dtype.element_ty), mask=mask)
    else:
        tl.store(y + i[None, :], new_a.to(Y.dtype.element_ty), mask=mask)
        tl.store(y + half + i[None, :], new_b.to(Y.dtype.element_ty), mask=mask)


def _launch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, y: torch.Tensor, interleaved: bool, backward: bool
) -> tuple[tuple[int, int], tuple[Any, ...], dict[str, int]]:
    """Grid, arguments and configuration of the kernel. What y holds of a head has to lie side by side."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    cos = cos if cos.stride(-1) == 1 else cos.contiguous()
    sin = sin if sin.stride(-1) == 1 else sin.contiguous()
    batch, heads, tokens, dim = x.shape
    cb, ct = (cos.stride(k) if cos.shape[k] > 1 else 0 for k in (0, 1))
    sb, st = (sin.stride(k) if sin.shape[k] > 1 else 0 for k in (0, 1))
    config = configs.rotation(heads, dim // 2, configs.warp_size(x.device))
    arguments = (
        x, cos, sin, y, heads, tokens, dim // 2, x.stride(0), x.stride(1), x.stride(2),
        y.stride(0), y.stride(1), y.stride(2), cb, ct, sb, st, backward, interleaved, cos.shape[-1] == dim,
    )  # fmt: skip
    return (batch * tokens, triton.cdiv(heads, config["HEADS"])), arguments, config


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, backward: bool) -> torch.Tensor:
    y = _rotate_fake(x, cos, sin, interleaved, backward)
    grid, arguments, config = _launch(x, cos, sin, y, interleaved, backward)
    wrap_triton(rope_rotate)[grid](*arguments, **config)
    return y


def _rotate_fake(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, backward: bool
) -> torch.Tensor:
    return along(x)


def _save(ctx, inputs, output) -> None:
    _, cos, sin, ctx.interleaved, ctx.backward = inputs
    ctx.save_for_backward(cos, sin)


def _gradient(backward, ctx, dy):
    cos, sin = ctx.saved_tensors
    dx = None if dy is None else torch.ops.rung.rope(dy, cos, sin, ctx.interleaved, not ctx.backward)
    return dx, None, None, None, None


apply = differentiable("rope", _rotate, _rotate_fake, _save, _gradient)


def _into_join(
    parts: list[torch.Tensor],
    rotated: list[int],
    cos: list[torch.Tensor],
    sin: list[torch.Tensor],
    interleaved: bool,
    backward: bool,
) -> torch.Tensor:
    """parts, each [batch, heads, tokens, d] with heads and d of its own, joined as [batch, tokens, sum of heads * d].

    Those whose numbers `rotated` gives are rotated on their way there, by a pair of tables each; the others are copied.
    """
    whole = _into_join_fake(parts)
    tables = dict(zip(rotated, zip(cos, sin, strict=True), strict=True))
    width, at = whole.shape[-1], 0
    for k, part in enumerate(parts):
        _, heads, tokens, dim = part.shape
        place = whole.as_strided(part.shape, (tokens * width, dim, width, 1), at)
        if k in tables:
            grid, arguments, config = _launch(part, *tables[k], place, interleaved, backward)
            wrap_triton(rope_rotate)[grid](*arguments, **config)
        else:
            place.copy_(part)
        at += heads * dim
    return whole


def _into_join_fake(parts: list[torch.Tensor], *_: object) -> torch.Tensor:
    batch, tokens = parts[0].shape[0], parts[0].shape[2]
    return parts[0].new_empty((batch, tokens, sum(part.shape[1] * part.shape[3] for part in parts)))


rotate_into_join = operator(
    "rotate_into_join", _into_join, _into_join_fake, opaque=True,
    schema="(Tensor[] parts, int[] rotated, Tensor[] cos, Tensor[] sin, bool interleaved, bool backward) -> Tensor",
)  # fmt: skip
