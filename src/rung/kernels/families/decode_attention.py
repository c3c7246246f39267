"""Attention of one query a head to a cache, the keys shared out among many programs; forward only.

One query leaves next to nothing to compute: what takes time is reading keys and values, which one program a head does at
the pace of one multiprocessor. Here each program reads a part of the keys for all query heads of a group, and keeps the
largest score, the sum of exponentials and the unfinished result of its part; a second kernel puts the parts together
(Dao et al., Flash-Decoding). Keys that the mask hides are not read where a whole block of them is hidden.
"""

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.operands import single
from rung.kernels.ops import INTERPRETED, operator, wrap_triton


@triton.jit
def decode_attention_part(
    Q, K, V, KEEP, PART, TOP, SUM, kv_heads, group, length, dim, v_dim, scale, per_part, q_batch, q_head,
    k_batch, k_head, k_row, v_batch, v_head, v_row, keep_batch, keep_row,
    MASKED: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    V_WIDTH: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // kv_heads).to(tl.int64)
    head = (tl.program_id(0) % kv_heads).to(tl.int64)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    e = tl.arange(0, V_WIDTH)
    q = tl.load(
        Q + batch * q_batch + (head * group + row[:, None]) * q_head + d[None, :],
        mask=(row[:, None] < group) & (d[None, :] < dim), other=0.0,
    )  # fmt: skip
    if EXACT:
        q = q.to(tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, V_WIDTH], tl.float32)
    first = tl.program_id(1) * per_part
    for at in range(first, tl.minimum(first + per_part, length), BLOCK):
        key = (at + tl.arange(0, BLOCK)).to(tl.int64)
        seen = key < length
        if MASKED:
            seen = tl.load(KEEP + batch * keep_batch + key * keep_row, mask=seen, other=0) != 0
        if tl.max(seen.to(tl.int32), axis=0) > 0:
            k = tl.load(
                K + batch * k_batch + head * k_head + key[None, :] * k_row + d[:, None],
                mask=seen[None, :] & (d[:, None] < dim), other=0.0,
            )  # fmt: skip
            v = tl.load(
                V + batch * v_batch + head * v_head + key[:, None] * v_row + e[None, :],
                mask=seen[:, None] & (e[None, :] < v_dim), other=0.0,
            )  # fmt: skip
            if EXACT:
                k, v = k.to(tl.float32), v.to(tl.float32)
            score = tl.dot(q, k, input_precision="ieee" if EXACT else None) * single(scale)
            score = tl.where(seen[None, :], score, float("-inf"))
            new = tl.maximum(top, tl.max(score, axis=1))  # finite: some key of this block is seen
            weight = tl.exp(score - new[:, None])
            shrunk = tl.exp(top - new)
            total = total * shrunk + tl.sum(weight, axis=1)
            found = found * shrunk[:, None]
            found += tl.dot(weight.to(v.dtype), v, input_precision="ieee" if EXACT else None)
            top = new
    # [batch, kv_heads, group, parts(, v_dim)]
    part = ((tl.program_id(0).to(tl.int64) * group + row) * tl.num_programs(1)) + tl.program_id(1)
    tl.store(TOP + part, top, mask=row < group)
    tl.store(SUM + part, total, mask=row < group)
    tl.store(PART + part[:, None] * v_dim + e[None, :], found, mask=(row[:, None] < group) & (e[None, :] < v_dim))


@triton.jit
def decode_attention_whole(PART, TOP, SUM, OUT, parts, v_dim, PARTS: tl.constexpr, V_WIDTH: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, PARTS)
    e = tl.arange(0, V_WIDTH)
    top = tl.load(TOP + head * parts + p, mask=p < parts, other=float("-inf"))
    largest = tl.max(top, axis=0)
    weight = tl.exp(top - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weight * tl.load(SUM + head * parts + p, mask=p < parts, other=0.0), axis=0)
    found = tl.load(
        PART + (head * parts + p[:, None]) * v_dim + e[None, :],
        mask=(p[:, None] < parts) & (e[None, :] < v_dim), other=0.0,
    )  # fmt: skip
    out = tl.sum(found * weight[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(OUT + head * v_dim + e, out.to(OUT.dtype.element_ty), mask=e < v_dim)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None, scale: float) -> torch.Tensor:
    out = _attend_fake(q, k, v, keep, scale)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    batch, heads, _, dim = q.shape
    kv_heads, length, v_dim = k.shape[1], k.shape[2], v.shape[3]
    group = heads // kv_heads
    # The interpreter multiplies the bits of bfloat16 as whole numbers.
    exact = q.dtype == torch.float32 or (INTERPRETED and q.dtype == torch.bfloat16)
    config = configs.decoding(batch * kv_heads, group, length, dim, v_dim, configs.units(q.device), exact)
    parts = max(1, triton.cdiv(length, config["per_part"]))  # of no keys, one that finds none
    top, total = (q.new_empty((batch, heads, parts), dtype=torch.float32) for _ in range(2))
    part = q.new_empty((batch, heads, parts, v_dim), dtype=torch.float32)
    keep_batch = keep.stride(0) if keep is not None and keep.shape[0] > 1 else 0
    wrap_triton(decode_attention_part)[(batch * kv_heads, parts)](
        q, k, v, q if keep is None else keep, part, top, total, kv_heads, group, length, dim, v_dim, scale,
        q_batch=q.stride(0), q_head=q.stride(1), k_batch=k.stride(0), k_head=k.stride(1), k_row=k.stride(2),
        v_batch=v.stride(0), v_head=v.stride(1), v_row=v.stride(2),
        keep_batch=keep_batch, keep_row=0 if keep is None else keep.stride(-1),
        MASKED=keep is not None, EXACT=exact, **config,
    )  # fmt: skip
    wrap_triton(decode_attention_whole)[(batch * heads,)](
        part, top, total, out, parts, v_dim, PARTS=configs.power_of_2(parts), V_WIDTH=config["V_WIDTH"], num_warps=4
    )
    return out


def _attend_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None, scale: float
) -> torch.Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


apply = operator("decode_attention", _attend, _attend_fake)
