"""act(gate) * up for SiLU, GELU (tanh) and GELU (erf), forward and backward.

silu(g) = g s(g);  gelu_tanh(g) = g s(2 u), u = sqrt(2/pi) (g + 0.044715 g^3), because (1 + tanh u) / 2 = s(2 u);
gelu_erf(g) = g (1 + erf(g / sqrt 2)) / 2; s is the logistic function. The backward pass computes act again from `gate`.
"""

import torch
import triton
import triton.language as tl

from rung.kernels import configs
from rung.kernels.families.numbers import wide
from rung.kernels.layout import rows, same_rows
from rung.kernels.ops import differentiable, wrap_triton

ACTIVATIONS = ("silu", "gelu_tanh", "gelu_erf")  # a kernel knows them by their place
_NAMES = ("silu_mul", "gelu_mul_tanh", "gelu_mul_erf")


@triton.jit
def _activate(g, ACT: tl.constexpr):
    """act(g) and its derivative."""
    if ACT == 0:
        s = tl.sigmoid(g)
        return g * s, s * (1 + g * (1 - s))
    elif ACT == 1:
        s = tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
        return g * s, s + g * s * (1 - s) * 1.5957691216057308 * (1 + 3 * 0.044715 * g * g)
    else:
        cdf = 0.5 + 0.5 * tl.erf(g * 0.7071067811865476)
        return g * cdf, cdf + g * 0.3989422804014327 * tl.exp(-0.5 * g * g)


@triton.jit
def gated_forward(
    GATE, UP, OUT, n_rows, n_cols, gate_stride, up_stride,
    ACT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(n_cols, BLOCK)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < n_rows) & (col < n_cols)
    value, _ = _activate(wide(tl.load(GATE + row * gate_stride + col, mask=mask, other=0.0)), ACT)
    value *= wide(tl.load(UP + row * up_stride + col, mask=mask, other=0.0))
    tl.store(OUT + row * n_cols + col, value.to(OUT.dtype.element_ty), mask=mask)


@triton.jit
def gated_backward(
    DOUT, GATE, UP, DGATE, DUP, n_rows, n_cols, dout_stride, gate_stride, up_stride, d_stride,
    PACKED: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Both gradients in one tensor: one pointer, because two that are written to are two tensors to a compiler.
    if PACKED:
        DUP = DGATE + n_cols
    tiles = tl.cdiv(n_cols, BLOCK)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < n_rows) & (col < n_cols)
    value, slope = _activate(wide(tl.load(GATE + row * gate_stride + col, mask=mask, other=0.0)), ACT)
    up = wide(tl.load(UP + row * up_stride + col, mask=mask, other=0.0))
    dout = wide(tl.load(DOUT + row * dout_stride + col, mask=mask, other=0.0))
    tl.store(DGATE + row * d_stride + col, (dout * up * slope).to(DGATE.dtype.element_ty), mask=mask)
    tl.store(DUP + row * d_stride + col, (dout * value).to(DUP.dtype.element_ty), mask=mask)


def _halves(gate: torch.Tensor, up: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if up is not None:
        return gate, up
    half = gate.shape[-1] // 2
    return gate[..., :half], gate[..., half:]


def _forward(gate: torch.Tensor, up: torch.Tensor | None, activation: int) -> torch.Tensor:
    out = _forward_fake(gate, up, activation)
    g, u = same_rows(*_halves(gate, up))
    n_rows, n_cols = g.shape
    config = configs.elementwise(n_cols, configs.warp_size(gate.device))
    grid = (triton.cdiv(n_rows, config["ROWS"]) * triton.cdiv(n_cols, config["BLOCK"]),)
    wrap_triton(gated_forward)[grid](g, u, out, n_rows, n_cols, g.stride(0), u.stride(0), activation, **config)
    return out


def _forward_fake(gate: torch.Tensor, up: torch.Tensor | None, activation: int) -> torch.Tensor:
    return gate.new_empty(_halves(gate, up)[0].shape)


def _backward(
    dout: torch.Tensor, gate: torch.Tensor, up: torch.Tensor | None, activation: int
) -> tuple[torch.Tensor, torch.Tensor]:
    d_gate, d_up = _backward_fake(dout, gate, up, activation)
    if up is None:
        d, g, u = (rows(t) for t in (dout, *_halves(gate, up)))
        d_stride = 2 * d.shape[1]
    else:
        d, g, u = same_rows(dout, gate, up)
        d_stride = d.shape[1]
    n_rows, n_cols = d.shape
    config = configs.elementwise(n_cols, configs.warp_size(gate.device))
    grid = (triton.cdiv(n_rows, config["ROWS"]) * triton.cdiv(n_cols, config["BLOCK"]),)
    wrap_triton(gated_backward)[grid](
        d, g, u, d_gate, d_up, n_rows, n_cols, d.stride(0), g.stride(0), u.stride(0), d_stride,
        up is None, activation, **config,
    )  # fmt: skip
    return d_gate, d_up


def _backward_fake(
    dout: torch.Tensor, gate: torch.Tensor, up: torch.Tensor | None, activation: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty((0,)) if up is None else up.new_empty(up.shape)


def _save(ctx, inputs, output) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _gradient(backward, ctx, dout):
    gate, up = ctx.saved_tensors
    if dout is None:
        return None, None, None
    d_gate, d_up = backward(dout, gate, up, ctx.activation)
    return d_gate, None if up is None else d_up, None


apply = differentiable("gated", _forward, _forward_fake, _save, _gradient, _backward, _backward_fake)
