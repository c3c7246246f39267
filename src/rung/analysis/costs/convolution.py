"""Convolutions: 2 x (positions of the result) x (weights that meet there), as torch.utils.flop_counter counts them.

Each direction of backward (by the input, by the weight) costs what forward costs. Transposed convolutions swap input
and result. Bytes: input and weight read, result written; backward reads the gradient and one of the two for each
gradient that it writes. Winograd and FFT kernels need fewer operations than this: their share of the roof can pass 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rung.analysis.costs.call import Call, Cost, Dims, Model, Tensor, Unknown, precision


class Form(NamedTuple):
    """The positions of an operator's arguments; -1 where it has none."""

    stride: int
    padding: int
    dilation: int
    groups: int
    bias: int = 2
    transposed: int = -1
    output_padding: int = -1
    always_transposed: bool = False


def output(
    shape: Dims, weight: Dims, stride: Dims, padding: Dims, dilation: Dims, *, groups: int = 1, transposed: bool = False,
    output_padding: Dims = (),
) -> Dims:  # fmt: skip
    """The shape of the result [batch, channels, ...] of an input [batch, channels, ...] and a weight.

    weight: [out, in / groups, ...]; of a transposed convolution [in, out / groups, ...]. Formula: torch.nn.Conv2d's and
    ConvTranspose2d's documentation.
    """
    spatial = len(shape) - 2
    if spatial < 1 or len(weight) != len(shape):
        raise Unknown
    stride, padding, dilation = (_each(v, spatial, d) for v, d in ((stride, 1), (padding, 0), (dilation, 1)))
    sizes = []
    for i in range(spatial):
        reach = dilation[i] * (weight[i + 2] - 1)
        if transposed:
            extra = _each(output_padding, spatial, 0)[i]
            sizes.append((shape[i + 2] - 1) * stride[i] - 2 * padding[i] + reach + extra + 1)
        else:
            if stride[i] < 1:
                raise Unknown
            sizes.append((shape[i + 2] + 2 * padding[i] - reach - 1) // stride[i] + 1)
    if min(sizes) < 1:
        raise Unknown
    return (shape[0], weight[1] * groups if transposed else weight[0], *sizes)


def _each(values: Dims, count: int, default: int) -> Dims:
    if not values:
        return (default,) * count
    if len(values) not in (1, count):
        raise Unknown
    return values * count if len(values) == 1 else values


def flops(shape: Dims, weight: Dims, result: Dims, transposed: bool) -> int:
    """shape: of the input, result: of the output."""
    positions = shape if transposed else result
    return 2 * positions[0] * math.prod(positions[2:]) * math.prod(weight)


def forward(form: Form) -> Model:
    def model(call: Call) -> Cost:
        x, weight = call.tensor(0), call.tensor(1)
        bias = call.maybe(form.bias) if form.bias >= 0 else None
        batched = x.shape if len(x.shape) == len(weight.shape) else (1, *x.shape)  # an input may lack its batch
        transposed = form.always_transposed or (form.transposed >= 0 and call.flag(form.transposed))
        result = output(
            batched,
            weight.shape,
            call.integers(form.stride),
            call.integers(form.padding),
            call.integers(form.dilation) if form.dilation >= 0 else (),
            groups=(call.integers(form.groups) or (1,))[0] if form.groups >= 0 else 1,
            transposed=transposed,
            output_padding=call.integers(form.output_padding) if form.output_padding >= 0 else (),
        )
        moved = x.bytes + weight.bytes + math.prod(result) * x.item + (bias.bytes if bias else 0)
        return Cost(flops(batched, weight.shape, result, transposed), moved, precision(x.dtype), matrix=True)

    return model


def backward(call: Call) -> Cost:
    """aten::convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    output_padding, groups, output_mask)
    """
    grad, x, weight = (call.tensor(i) for i in range(3))
    wanted = [word == "True" for word in call.text(10).strip("[] ").replace(" ", "").split(",")]
    if len(wanted) != 3 or len(x.shape) != len(weight.shape) or len(grad.shape) != len(x.shape):
        raise Unknown
    return _backward(grad, x, weight, call.flag(7), wanted)


def _backward(grad: Tensor, x: Tensor, weight: Tensor, transposed: bool, wanted: list[bool]) -> Cost:
    by_input, by_weight, by_bias = wanted
    once = flops(x.shape, weight.shape, grad.shape, transposed)
    moved = (by_input + by_weight) * grad.bytes
    if by_input:
        moved += weight.bytes + x.size * x.item
    if by_weight:
        moved += x.bytes + weight.size * weight.item
    if by_bias:
        moved += (0 if by_input or by_weight else grad.bytes) + grad.shape[1] * grad.item
    return Cost((by_input + by_weight) * once, moved, precision(x.dtype), matrix=True)


# Signatures: ATen's native_functions.yaml, 2.6 to 2.13.
_GENERAL = Form(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)
_SIMPLE = Form(stride=3, padding=4, dilation=5, groups=6)
_CUDNN = Form(bias=-1, padding=2, stride=3, dilation=4, groups=5)
_MIOPEN = Form(padding=3, stride=4, dilation=5, groups=6)

FORMS: dict[str, Form] = {
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    "aten::conv1d": _SIMPLE,
    "aten::conv2d": _SIMPLE,
    "aten::conv3d": _SIMPLE,
    "aten::cudnn_convolution": _CUDNN,
    "aten::cudnn_convolution_relu": _SIMPLE,
    "aten::cudnn_convolution_add_relu": Form(bias=4, stride=5, padding=6, dilation=7, groups=8),
    "aten::cudnn_convolution_transpose": Form(
        bias=-1, padding=2, output_padding=3, stride=4, dilation=5, groups=6, always_transposed=True
    ),
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::miopen_convolution_relu": _SIMPLE,
    "aten::miopen_convolution_add_relu": Form(bias=4, stride=5, padding=6, dilation=7, groups=8),
    "aten::miopen_convolution_transpose": Form(
        padding=3, output_padding=4, stride=5, dilation=6, groups=7, always_transposed=True
    ),
    "aten::_conv_depthwise2d": Form(bias=3, stride=4, padding=5, dilation=6, groups=-1),
    "aten::_slow_conv2d_forward": Form(bias=3, stride=4, padding=5, dilation=-1, groups=-1),
    "aten::slow_conv_dilated2d": Form(bias=3, stride=4, padding=5, dilation=6, groups=-1),
    "aten::slow_conv3d_forward": Form(bias=3, stride=4, padding=5, dilation=-1, groups=-1),
}

MODELS: dict[str, Model] = {
    **{name: forward(form) for name, form in FORMS.items()},
    "aten::convolution_backward": backward,
    "aten::convolution_backward_overrideable": backward,
}
