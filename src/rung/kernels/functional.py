"""The kernels as functions: shapes and dtypes checked, rows and reductions as a caller has them.

Tensors are on one GPU, float32, float16 or bfloat16; arithmetic is float32 and is rounded once, at the end, unless said
otherwise. All in float64 are computed in float64, as a check of a gradient wants it, with eps, offset and smoothing as float32 has them. Any strides: what is no set of rows with unit column stride is copied first. Raises UsageError for anything else.
"""

import torch

from rung.errors import UsageError
from rung.kernels.families import cross_entropy as _cross_entropy
from rung.kernels.families import decode_attention as _decode_attention
from rung.kernels.families import gated as _gated
from rung.kernels.families import layer_norm as _layer_norm
from rung.kernels.families import linear_cross_entropy as _linear_cross_entropy
from rung.kernels.families import rms_norm as _rms_norm
from rung.kernels.families import rope as _rope
from rung.kernels.ops import check


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast_first: bool = False,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension.

    x: (..., n); weight: (n,). cast_first: the normed value is rounded to x's dtype before it meets the weight, and the
    result has the dtype of their product (Llama); else the product is float32 and the result has x's dtype
    (`torch.nn.RMSNorm`; Gemma with offset 1).
    """
    _check_norm("rms_norm", x, weight=weight)
    return _rms_norm.apply(x, None, weight, eps, offset, cast_first)[0]  # type: ignore[no-any-return]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6, *,
    offset: float = 0.0, cast_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`rms_norm` of x + residual, and that sum (rounded to their dtype before it is normed, as eager does).

    x, residual: (..., n), one dtype. Returns (normed, sum).
    """
    _check_norm("add_rms_norm", x, weight=weight)
    check("add_rms_norm", x=x, residual=residual)
    if x.shape != residual.shape or x.dtype != residual.dtype:
        raise UsageError(
            f"add_rms_norm: x is {_text(x)} and residual {_text(residual)}; they must have one shape and one dtype."
        )
    normed, total, _ = _rms_norm.apply(x, residual, weight, eps, offset, cast_first)
    return normed, total


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """LayerNorm over the last dimension, as `torch.nn.functional.layer_norm`. x: (..., n); weight, bias: (n,)."""
    _check_norm("layer_norm", x, weight=weight, bias=bias)
    return _layer_norm.apply(x, weight, bias, eps)[0]  # type: ignore[no-any-return]


def silu_mul(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up. gate, up: (..., n), one dtype; or gate alone: (..., 2n), its first half being the gate.

    Halves of one tensor may be given as such; then give the tensor itself where gradients matter: they are written
    into one tensor, too, and not copied together.
    """
    return _gate("silu_mul", gate, up, 0)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor | None = None, *, approximate: str = "tanh") -> torch.Tensor:
    """gelu(gate) * up; arguments as for `silu_mul`. approximate: "tanh" or "none" (erf), as torch has it."""
    if approximate not in ("tanh", "none"):
        raise UsageError(f"gelu_mul: approximate is {approximate!r}; it is 'tanh' or 'none'.")
    return _gate("gelu_mul", gate, up, 1 if approximate == "tanh" else 2)


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
    return _rope.apply(x, cos, sin, interleaved, False)  # type: ignore[no-any-return]


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
    return _decode_attention.apply(q, k, v, keep, q.shape[3] ** -0.5 if scale is None else float(scale))  # type: ignore[no-any-return]


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """Softmax cross-entropy over the last dimension; the loss is float32 whatever the logits are, but of float64.

    logits: (..., classes); target: (...), integers. reduction: mean (over what is not ignored), sum or none (a loss a
    row). A target that is no class and not `ignore_index` makes the loss NaN.
    """
    _check_loss("cross_entropy", reduction, ("mean", "sum", "none"), label_smoothing)
    check("cross_entropy", logits=logits, target=target)
    if target.shape != logits.shape[:-1]:
        raise UsageError(
            f"cross_entropy: target is {_text(target)}; for logits of {_text(logits)} it must have all but the last size."
        )
    loss = _cross_entropy.apply(logits, target, ignore_index, float(label_smoothing))[0]
    if reduction == "mean":
        return loss.sum() / (target != ignore_index).sum()  # type: ignore[no-any-return]
    return loss.sum() if reduction == "sum" else loss  # type: ignore[no-any-return]


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None = None, *,
    ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """cross_entropy(hidden @ weight.T + bias, target), without all logits in memory at once; a float32 scalar (of float64 one in float64).

    hidden: (..., n); weight: (classes, n); bias: (classes,); target: (...). reduction: mean or sum. Gradients are
    computed with the loss; the weight's is added up over chunks of rows in the weight's dtype. Under autocast the
    products have its dtype, as those of `torch.nn.functional.linear` would.
    """
    _check_loss("linear_cross_entropy", reduction, ("mean", "sum"), label_smoothing)
    check("linear_cross_entropy", hidden=hidden, weight=weight, target=target, bias=bias)
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    n = hidden.shape[-1]
    if weight.ndim != 2 or weight.shape[1] != n or target.shape != hidden.shape[:-1]:
        raise UsageError(
            f"linear_cross_entropy: hidden {_text(hidden)}, weight {_text(weight)} and target {_text(target)} do not fit: "
            "(..., n), (classes, n) and (...)."
        )
    if hidden.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise UsageError(f"linear_cross_entropy: hidden is {hidden.dtype} and weight {weight.dtype}; give one dtype.")
    grad = torch.is_grad_enabled()
    wanted = grad and (weight.requires_grad or (bias is not None and bias.requires_grad))
    with torch.autocast(kind, enabled=False):
        found = _linear_cross_entropy.apply(
            hidden.reshape(-1, n), weight, bias, target.reshape(-1), ignore_index, float(label_smoothing),
            reduction == "mean", grad and hidden.requires_grad, wanted,
        )  # fmt: skip
    return found[0]  # type: ignore[no-any-return]


def _gate(name: str, gate: torch.Tensor, up: torch.Tensor | None, activation: int) -> torch.Tensor:
    check(name, gate=gate, up=up)
    if up is None and gate.shape[-1] % 2:
        raise UsageError(f"{name}: gate is {_text(gate)}; without up its last dimension must be even.")
    if up is not None and (gate.shape != up.shape or gate.dtype != up.dtype):
        raise UsageError(f"{name}: gate is {_text(gate)} and up {_text(up)}; they must have one shape and one dtype.")
    return _gated.apply(gate, up, activation)  # type: ignore[no-any-return]


def _check_norm(name: str, x: torch.Tensor, **parameters: torch.Tensor | None) -> None:
    check(name, x=x, **parameters)
    for what, t in parameters.items():
        if t is not None and t.shape != x.shape[-1:]:
            raise UsageError(f"{name}: {what} is {_text(t)}; for x of {_text(x)} it must have its last size.")


def _check_loss(name: str, reduction: str, known: tuple[str, ...], smoothing: float) -> None:
    if reduction not in known:
        raise UsageError(f"{name}: reduction is {reduction!r}; it is one of {', '.join(known)}.")
    if not 0.0 <= smoothing <= 1.0:
        raise UsageError(f"{name}: label_smoothing is {smoothing}; it lies between 0 and 1.")


def _text(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"
