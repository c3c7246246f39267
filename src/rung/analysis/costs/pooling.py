"""Pooling and resampling: the input read, the result written; one operation for each element of each window."""

from __future__ import annotations

import math

from rung.analysis.costs.call import Call, Cost, Dims, Model, Tensor, Unknown, precision


def pool(dimensions: int, *, indices: bool) -> Model:
    """(self, kernel_size, stride, padding, dilation or ceil_mode, ...); indices: the places of maxima are written, too"""

    def model(call: Call) -> Cost:
        x = call.tensor(0)
        kernel = _each(call.integers(1), dimensions)
        stride = _each(call.integers(2), dimensions) if call.integers(2) else kernel
        padding = _each(call.integers(3) or (0,), dimensions)
        dilation = _each(call.integers(4) or (1,), dimensions) if indices else (1,) * dimensions
        up = call.flag(5 if indices else 4)
        sizes = []
        for i, size in enumerate(x.shape[-dimensions:]):
            room = size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
            if stride[i] < 1 or room < 0:
                raise Unknown
            out = (room + (stride[i] - 1 if up else 0)) // stride[i] + 1
            if up and (out - 1) * stride[i] >= size + padding[i]:  # a window may not begin in the padding behind
                out -= 1
            sizes.append(out)
        return _pooled(x, math.prod(x.shape[:-dimensions]) * math.prod(sizes), math.prod(kernel), 8 * indices)

    return model


def adaptive(dimensions: int, *, indices: bool = False) -> Model:
    """aten::_adaptive_avg_pool2d(self, output_size): the windows cover the input once"""

    def model(call: Call) -> Cost:
        x, sizes = call.tensor(0), _each(call.integers(1), dimensions)
        out = math.prod(x.shape[:-dimensions]) * math.prod(sizes)
        return Cost(x.size, x.bytes + out * (x.item + 8 * indices), precision(x.dtype))

    return model


def pool_backward(call: Call) -> Cost:
    """(grad_output, self, ...): the gradient and the places of maxima are read, the input's gradient is written"""
    grad, x = call.tensor(0), call.tensor(1)
    places = sum(t.bytes for t in call.tensors if t.dtype == "int64")
    return Cost(grad.size, grad.bytes + places + x.size * x.item, precision(x.dtype))


def upsample(dimensions: int, taps: int) -> Model:
    """aten::upsample_*(self, output_size, ..., scales): taps: how many elements go into one of the result"""

    def model(call: Call) -> Cost:
        x, sizes = call.tensor(0), call.integers(1)
        if len(sizes) != dimensions or len(x.shape) < dimensions:
            raise Unknown
        out = math.prod(x.shape[:-dimensions]) * math.prod(sizes)
        return Cost(2 * taps * out, x.bytes + out * x.item, precision(x.dtype))

    return model


def _pooled(x: Tensor, out: int, window: int, extra: int) -> Cost:
    return Cost(out * window, x.bytes + out * (x.item + extra), precision(x.dtype))


def _each(values: Dims, count: int) -> Dims:
    if len(values) not in (1, count) or min(values) < 0:
        raise Unknown
    return values * count if len(values) == 1 else values


MODELS: dict[str, Model] = {
    "aten::max_pool2d_with_indices": pool(2, indices=True),
    "aten::max_pool3d_with_indices": pool(3, indices=True),
    "aten::avg_pool2d": pool(2, indices=False),
    "aten::avg_pool3d": pool(3, indices=False),
    "aten::_adaptive_avg_pool2d": adaptive(2),
    "aten::adaptive_avg_pool2d": adaptive(2),
    "aten::_adaptive_avg_pool3d": adaptive(3),
    "aten::adaptive_max_pool2d": adaptive(2, indices=True),
    "aten::max_pool2d_with_indices_backward": pool_backward,
    "aten::max_pool3d_with_indices_backward": pool_backward,
    "aten::avg_pool2d_backward": pool_backward,
    "aten::_adaptive_avg_pool2d_backward": pool_backward,
    "aten::upsample_nearest1d": upsample(1, 1),
    "aten::upsample_nearest2d": upsample(2, 1),
    "aten::upsample_nearest3d": upsample(3, 1),
    "aten::_upsample_nearest_exact2d": upsample(2, 1),
    "aten::upsample_linear1d": upsample(1, 2),
    "aten::upsample_bilinear2d": upsample(2, 4),
    "aten::_upsample_bilinear2d_aa": upsample(2, 4),
    "aten::upsample_bicubic2d": upsample(2, 16),
    "aten::_upsample_bicubic2d_aa": upsample(2, 16),
}
