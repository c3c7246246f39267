"""Two linear layers with GELU in between, for training: GELU and its gradient are computed as products are written.

Going forward, the first product is written as it is and through GELU. Going back, the product that gives the gradient of GELU's result is
multiplied by the derivative before it is written. Without that, each is a kernel that reads what a product wrote and writes it again.
"""

from typing import Any

import torch
import torch.nn.functional as F

from rung.kernels import cublaslt
from rung.kernels.once import no_forward_mode, once
from rung.kernels.ops import operator


def _forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made, product = _forward_fake(x, weight, bias)
    left, right = _in_lines(x), _in_lines(weight).t()
    if not cublaslt.multiply(left, right, made, cublaslt.GELU_AUX_BIAS, product, bias.contiguous()):
        product = F.linear(x, weight, bias)
        made = F.gelu(product, approximate="tanh")
    return made, product


def _forward_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = x.new_empty(x.shape[0], weight.shape[0])
    return made, torch.empty_like(made)


def _backward(slope: torch.Tensor, weight: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    made, product = _backward_fake(slope, weight, product), product.contiguous()
    if not cublaslt.multiply(_in_lines(slope), _in_lines(weight), made, cublaslt.DGELU, product):
        made = torch.ops.aten.gelu_backward(slope @ weight, product, approximate="tanh")
    return made


def _backward_fake(slope: torch.Tensor, weight: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    return product.new_empty(product.shape)


def _in_lines(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if cublaslt.in_lines(matrix) else matrix.contiguous()


gelu_product = operator("gelu_product", _forward, _forward_fake, opaque=True)
gelu_product_backward = operator("gelu_product_backward", _backward, _backward_fake, opaque=True)


class _Between(torch.autograd.Function):
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        up: torch.Tensor,
        up_bias: torch.Tensor,
        down: torch.Tensor,
        down_bias: torch.Tensor | None,
        turned: tuple[bool, bool],
    ) -> torch.Tensor:
        ctx.turned = turned
        activation, product = gelu_product(x, up.t() if turned[0] else up, up_bias)
        of_x, of_up, _, of_down, *_ = ctx.needs_input_grad
        inner = any(ctx.needs_input_grad[:3])
        needed = (x, of_up), (up, of_x), (down, inner), (activation, of_down), (product, inner)
        ctx.save_for_backward(*(each if wanted else None for each, wanted in needed))
        return F.linear(activation, down.t() if turned[1] else down, down_bias)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        x, up, down, activation, product = ctx.saved_tensors
        slope, wanted, (up_turned, down_turned) = slopes[0], ctx.needs_input_grad, ctx.turned
        with torch.no_grad():
            found: list[torch.Tensor | None] = [None] * 6
            if any(wanted[:3]):
                inner = gelu_product_backward(slope, down.t() if down_turned else down, product)
                found[0] = inner @ (up.t() if up_turned else up) if wanted[0] else None
                found[1] = _of_weight(inner, x, up_turned) if wanted[1] else None
                found[2] = inner.sum(0) if wanted[2] else None
            found[3] = _of_weight(slope, activation, down_turned) if wanted[3] else None
            found[4] = slope.sum(0) if wanted[4] else None
        return once(found)


def _of_weight(slope: torch.Tensor, x: torch.Tensor, turned: bool) -> torch.Tensor:
    """The gradient of a weight as that lies, so that nobody has to copy it into another order."""
    return x.t() @ slope if turned else slope.t() @ x


def gelu_between(
    x: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    down_bias: torch.Tensor | None = None,
    turned: tuple[bool, bool] = (False, False),
) -> torch.Tensor:
    """F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh"), down, down_bias), with gradients.

    x [M, K], up [N, K], up_bias [N], down [P, N], down_bias [P], of one dtype and device -> [M, P]. turned: whether up is [K, N], and whether
    down is [N, P], as GPT-2 has them. On an NVIDIA GPU in 16 bits GELU and its derivative are epilogues of products of cuBLASLt; elsewhere, and
    where N is no multiple of 8, they are torch's. Keeps [M, N] twice for the gradient, as eager does, and once where down is frozen. There is no
    second derivative, and none in forward mode.
    """
    made: torch.Tensor = _Between.apply(x, up, up_bias, down, down_bias, turned)
    return made
