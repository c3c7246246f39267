"""The kernels as functions: shapes and dtypes checked, rows and reductions as a caller has them.

Tensors are on one GPU, float32, float16 or bfloat16; arithmetic is float32 and is rounded once, at the end, unless said
otherwise. All in float64 are computed in float64, as a check of a gradient wants it, with the smoothing as float32 has it. Any strides: what is no set of rows with unit column stride is copied first. Raises UsageError for anything else.
"""

import math

import torch

from rung.errors import UsageError
from rung.kernels.configs import WIDEST, holds_bias
from rung.kernels.dropout import draw_seed
from rung.kernels.families import biased_attention as _biased_attention
from rung.kernels.families import cross_entropy as _cross_entropy
from rung.kernels.families import decode_attention as _decode_attention
from rung.kernels.families import gemv as _gemv
from rung.kernels.families import rope as _rope
from rung.kernels.ops import check

REDUCTIONS = ("mean", "sum", "none")


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Rotary embedding of x: (batch, heads, tokens, d), d even.

    cos, sin: (tokens, c) or (batch or 1, tokens, c), where c is d (as Hugging Face has it) or d / 2; no gradient flows
    into them, so they must not require one. interleaved: pairs are (2i, 2i + 1), else (i, i + d/2). The result keeps
    the order of x's dimensions in memory: heads inside tokens, or tokens inside heads.
    """
    check("rope", x=x, cos=cos, sin=sin)
    cos, sin = (t.unsqueeze(0) if t.ndim == 2 else t for t in (cos, sin))
    if x.ndim != 4 or x.shape[-1] % 2:
        raise UsageError(f"rope: x is {_text(x)}; it must be (batch, heads, tokens, d) with an even d.")
    for name, t in (("cos", cos), ("sin", sin)):
        if t.requires_grad:
            raise UsageError(f"rope: {name} requires a gradient, which the kernel does not compute.")
        fits = t.ndim == 3 and t.shape[0] in (1, x.shape[0]) and t.shape[1] in (1, x.shape[2])
        if not fits or t.shape != cos.shape or t.shape[2] not in (x.shape[3], x.shape[3] // 2):
            raise UsageError(
                f"rope: {name} is {_text(t)}; for x of {_text(x)} it must be (batch or 1, tokens, d or d / 2), as the other."
            )
    return _rope.apply(x, cos, sin, interleaved, False)


def decode_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None = None, *, scale: float | None = None
) -> torch.Tensor:
    """softmax(scale * q k^T) v of one query a head; forward only.

    q: (batch, heads, 1, d); k: (batch, kv heads, keys, d); v: (batch, kv heads, keys, e); kv heads divide heads, and each
    serves the heads / kv heads that follow one another. keep: (batch or 1, keys), bool, True where a key is seen; a query
    that sees none gets zeros, also where there are no keys. scale: 1 / sqrt(d) where it is None.
    """
    check("decode_attention", q=q, k=k, v=v, keep=keep)
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[2] == 1 and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or not k.shape[1] or q.shape[1] % k.shape[1]:
        raise UsageError(
            f"decode_attention: q {_text(q)}, k {_text(k)} and v {_text(v)} do not fit: "
            "(batch, heads, 1, d), (batch, kv heads, keys, d) and (batch, kv heads, keys, e)."
        )
    if q.dtype == torch.float64:
        raise UsageError("decode_attention: there is none in float64; rung.kernels.reference.decode_attention is.")
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"decode_attention: q is {q.dtype}, k {k.dtype} and v {v.dtype}; give one dtype.")
    wanted = ((1, k.shape[2]), (k.shape[0], k.shape[2]))
    if keep is not None and (keep.dtype != torch.bool or tuple(keep.shape) not in wanted):
        raise UsageError(f"decode_attention: keep is {_text(keep)}; for k {_text(k)} it is bool (batch or 1, keys).")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        raise UsageError("decode_attention: it has no gradient; call it under torch.no_grad().")
    return _decode_attention.apply(q, k, v, keep, q.shape[3] ** -0.5 if scale is None else float(scale))


def gemv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias of one row, as `F.linear` has it; forward only.

    x: (..., k), one row in all; weight: (n, k); bias: (n,). All are of one dtype.
    """
    check("gemv", x=x, weight=weight, bias=bias)
    fits = x.ndim and weight.ndim == 2 and x.shape[-1] == weight.shape[1]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        given = "" if bias is None else f" and bias {_text(bias)}"
        raise UsageError(
            f"gemv: x {_text(x)}, weight {_text(weight)}{given} do not fit: (..., k), (n, k) and, if there is one, (n,)."
        )
    if (rows := math.prod(x.shape[:-1])) != 1:
        raise UsageError(f"gemv: x is {_text(x)}, {rows} rows; the kernel takes one.")
    if x.dtype == torch.float64:
        raise UsageError("gemv: there is none in float64; rung.kernels.reference.gemv is.")
    given_dtypes = {t.dtype for t in (x, weight, bias) if t is not None}
    if len(given_dtypes) > 1:
        raise UsageError(f"gemv: the dtypes are {', '.join(sorted(map(str, given_dtypes)))}; give one dtype.")
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        raise UsageError("gemv: it has no gradient; call it under torch.no_grad().")
    return _gemv.apply(x, weight, bias)


def biased_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, scale: float | None = None, *,
    dropout_p: float = 0.0, seed: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """softmax(scale * q k^T + bias) v, as torch's scaled_dot_product_attention has it with a float mask that may learn.

    q: (batch, heads, m, d); k: (batch, heads, n, d); v: (batch, heads, n, e), of one dtype, d and e at most 128. bias: (batch
    or 1, heads or 1, m or 1, n or 1) of any dtype but float64; -inf hides a key, and so do numbers that are -inf times log2(e), as
    the lowest of float32 and bfloat16. A query that sees no key gets zeros. scale: 1 / sqrt(d) where it is None. The result and the gradients of q, k and v have heads inside tokens in memory.

    dropout_p: the probability that a weight is dropped, to the nearest multiple of 2^-16. seed: int64, of one element, on the same device;
    it fixes which weights are dropped. Where it is None, torch's generator draws one.
    """
    check("biased_attention", q=q, k=k, v=v, bias=bias, seed=seed)
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[:2] == k.shape[:2] and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[3] != k.shape[3] or q.shape[3] > WIDEST or v.shape[3] > WIDEST:
        raise UsageError(
            f"biased_attention: q {_text(q)}, k {_text(k)} and v {_text(v)} do not fit: "
            f"(batch, heads, m, d), (batch, heads, n, d) and (batch, heads, n, e), d and e at most {WIDEST}."
        )
    if q.dtype == torch.float64:
        raise UsageError("biased_attention: there is none in float64; rung.kernels.reference.biased_attention is.")
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"biased_attention: q is {q.dtype}, k {k.dtype} and v {v.dtype}; give one dtype.")
    scores = (*q.shape[:3], k.shape[2])
    if bias.ndim != 4 or any(size not in (1, whole) for size, whole in zip(bias.shape, scores, strict=True)):
        raise UsageError(f"biased_attention: bias is {_text(bias)}; it must broadcast to {scores}, in four dimensions.")
    if not holds_bias(*scores[2:]):
        raise UsageError(
            f"biased_attention: a head has {scores[2]} x {scores[3]} scores; the kernels take fewer than 2^31."
        )
    if not 0.0 <= dropout_p <= 1.0:
        raise UsageError(f"biased_attention: dropout_p is {dropout_p}; it lies between 0 and 1.")
    if seed is not None and (seed.dtype != torch.int64 or seed.numel() != 1):
        raise UsageError(f"biased_attention: seed is {_text(seed)}; it must be int64, of one element.")
    if not dropout_p:
        seed = None
    elif seed is None:
        seed = draw_seed(q.device)
    bias = bias.expand(*bias.shape[:2], *scores[2:])
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    return _biased_attention.apply(q, k, v, bias, scale, float(dropout_p), seed)[0]


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """Softmax cross-entropy over the last dimension; the loss is float32 whatever the logits are, but of float64.

    logits: (..., classes); target: (...), integers. reduction: mean (over what is not ignored), sum or none (a loss a
    row). A target that is no class and not `ignore_index` makes the loss NaN.
    """
    if reduction not in REDUCTIONS:
        raise UsageError(f"cross_entropy: reduction is {reduction!r}; it is one of {', '.join(REDUCTIONS)}.")
    if not 0.0 <= label_smoothing <= 1.0:
        raise UsageError(f"cross_entropy: label_smoothing is {label_smoothing}; it lies between 0 and 1.")
    check("cross_entropy", logits=logits, target=target)
    if target.shape != logits.shape[:-1]:
        raise UsageError(
            f"cross_entropy: target is {_text(target)}; for logits of {_text(logits)} it must have all but the last size."
        )
    loss = _cross_entropy.apply(logits, target, ignore_index, float(label_smoothing))[0]
    if reduction == "mean":
        return loss.sum() / (target != ignore_index).sum()
    return loss.sum() if reduction == "sum" else loss


def _text(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"
