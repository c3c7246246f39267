"""What the kernels compute, in plain PyTorch: for float64 in tests and benchmarks, and for a CPU.

Each takes the arguments of the kernel of its name, and its result has the dtype that the kernel's has.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from rung.kernels.dropout import draw_seed, keep_mask, keep_probability


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    cos, sin = (t.unsqueeze(0) if t.ndim == 2 else t for t in (cos, sin))
    if cos.shape[-1] != x.shape[-1]:
        cos, sin = (t.repeat_interleave(2, -1) if interleaved else torch.cat((t, t), -1) for t in (cos, sin))
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)).to(x.dtype)


def decode_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None = None, *, scale: float | None = None
) -> torch.Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = q.to(wide).reshape(k.shape[0], k.shape[1], q.shape[1] // k.shape[1], q.shape[3])
    scores = rows @ k.to(wide).mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, None], float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)  # a query that sees no key
    return (weights @ v.to(wide)).to(q.dtype).reshape(*q.shape[:3], v.shape[3])


def gemv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide)).to(x.dtype)


def biased_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, scale: float | None = None, *,
    dropout_p: float = 0.0, seed: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = bias.to(wide).expand(*q.shape[:3], k.shape[2])
    q32, k32, v32 = (
        x.to(wide).contiguous() for x in (q, k, v)
    )  # torch's kernel for float32 refuses rows at odd distances
    if not dropout_p:
        return F.scaled_dot_product_attention(q32, k32, v32, mask, scale=scale).to(q.dtype)
    closed = (mask == float("-inf")).all(-1, keepdim=True)  # a query that sees no key
    scores = q32 @ k32.mT * (q.shape[3] ** -0.5 if scale is None else scale) + mask
    weights = scores.masked_fill(closed, 0.0).softmax(-1).masked_fill(closed, 0.0)
    kept = keep_mask(draw_seed(q.device) if seed is None else seed, scores.shape, dropout_p)
    inverse = 1.0 / (keep_probability(dropout_p) or 1.0)
    return (weights.masked_fill(~kept, 0.0) * inverse @ v32).to(q.dtype)


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    wide = logits if logits.dtype == torch.float64 else logits.float()
    flat = F.cross_entropy(
        wide.reshape(-1, wide.shape[-1]), target.reshape(-1), ignore_index=ignore_index,
        label_smoothing=label_smoothing, reduction=reduction,
    )  # fmt: skip
    return flat.view(target.shape) if reduction == "none" else flat
