"""Normalisations, softmax and the losses on top of it: bound by memory, so the bytes are what counts.

Operations an element are counted from the definitions (mean, variance, shift, scale, gain, bias: 8; their gradients
about 12; softmax: largest, difference, exponential, sum, quotient: 5), as a lower estimate.
"""

from __future__ import annotations

from rung.analysis.costs.call import Call, Cost, Model, Tensor, Unknown, precision

_NORM, _NORM_BACKWARD, _SOFTMAX = 8, 12, 5


def norm(call: Call) -> Cost:
    """(input, ...): the input is read, the result of its size written, gains and running statistics read."""
    x = call.tensor(0)
    small = sum(t.bytes for t in call.tensors) - x.bytes
    return Cost(_NORM * x.size, x.bytes + x.size * x.item + small, precision(x.dtype))


def batch_norm(call: Call) -> Cost:
    """(input, weight, bias, running_mean, running_var, training, ...): training also writes statistics."""
    cost = norm(call)
    x = call.tensor(0)
    channels = x.shape[1] if len(x.shape) > 1 else 1
    training = call.flag(5)
    return Cost(cost.flops, cost.bytes + (4 * channels * 4 if training else 0), cost.precision)


def norm_backward(grad: int, x: int) -> Model:
    """The gradient of the result and the input are read, the gradient of the input is written."""

    def model(call: Call) -> Cost:
        given, seen = call.tensor(grad), call.tensor(x)
        if given.size != seen.size:
            raise Unknown
        read = sum(t.bytes for t in call.tensors)
        return Cost(_NORM_BACKWARD * seen.size, read + seen.size * seen.item, precision(seen.dtype))

    return model


def add_norm(call: Call) -> Cost:
    """_C::fused_add_rms_norm(input, residual, weight, epsilon), both replaced: input + residual, and its norm"""
    x, residual = call.tensor(0), call.tensor(1)
    return Cost((_NORM + 1) * x.size, 2 * x.bytes + 2 * residual.bytes + _weight(call, 2), precision(x.dtype))


def norm_out(call: Call) -> Cost:
    """_C::rms_norm(out, input, weight, epsilon)"""
    out, x = call.tensor(0), call.tensor(1)
    return Cost(_NORM * x.size, out.bytes + x.bytes + _weight(call, 2), precision(x.dtype))


def add_norm_out(call: Call) -> Cost:
    """aiter::add_rmsnorm(out, input, residual_in, residual_out, weight, epsilon), and rmsnorm2d_fwd_with_add_ck: input +
    residual, and its norm, both written"""
    out, x, residual, total = (call.tensor(i) for i in range(4))
    if not out.size == x.size == residual.size == total.size:
        raise Unknown
    moved = out.bytes + x.bytes + residual.bytes + total.bytes + _weight(call, 4)
    return Cost((_NORM + 1) * x.size, moved, precision(x.dtype))


def softmax(call: Call) -> Cost:
    """aten::_softmax(self, dim, half_to_float) and _log_softmax"""
    x = call.tensor(0)
    item = 4 if call.flag(2) else x.item
    return Cost(_SOFTMAX * x.size, x.bytes + x.size * item, "fp32" if call.flag(2) else precision(x.dtype))


def softmax_backward(call: Call) -> Cost:
    """aten::_softmax_backward_data(grad_output, output, dim, input_dtype)"""
    grad, out = call.tensor(0), call.tensor(1)
    return Cost(4 * out.size, grad.bytes + out.bytes + out.size * out.item, precision(out.dtype))


def nll_loss(call: Call) -> Cost:
    """aten::nll_loss_forward(self [rows, classes, ...], target, ...): one element a row is read, one number written"""
    x, target = call.tensor(0), call.tensor(1)
    return Cost(2 * target.size, target.bytes + target.size * x.item + x.item, precision(x.dtype))


def nll_loss_backward(call: Call) -> Cost:
    """aten::nll_loss_backward(grad_output, self, target, ...): a gradient of the size of `self`, zeros but for one a row"""
    x, target = call.tensor(1), call.tensor(2)
    return Cost(target.size, target.bytes + x.size * x.item, precision(x.dtype))


def cross_entropy(call: Call) -> Cost:
    """Fused cross entropy of logits [rows, classes] and targets: the logits are read once."""
    x, target = call.tensor(0), call.tensor(1)
    return Cost(_SOFTMAX * x.size, x.bytes + target.bytes + target.size * 4, precision(x.dtype))


def _weight(call: Call, index: int) -> int:
    weight: Tensor | None = call.maybe(index)
    if weight is None:
        raise Unknown
    return weight.bytes


MODELS: dict[str, Model] = {
    "aten::native_layer_norm": norm,
    "aten::layer_norm": norm,
    "aten::rms_norm": norm,
    "aten::_fused_rms_norm": norm,
    "aten::native_group_norm": norm,
    "aten::group_norm": norm,
    "aten::instance_norm": norm,
    "aten::native_batch_norm": batch_norm,
    "aten::cudnn_batch_norm": batch_norm,
    "aten::miopen_batch_norm": batch_norm,
    "aten::_native_batch_norm_legit": batch_norm,
    "aten::_batch_norm_with_update": batch_norm,
    "aten::batch_norm": batch_norm,
    "aten::native_layer_norm_backward": norm_backward(0, 1),
    "aten::_fused_rms_norm_backward": norm_backward(0, 1),
    "aten::native_group_norm_backward": norm_backward(0, 1),
    "aten::native_batch_norm_backward": norm_backward(0, 1),
    "aten::batch_norm_backward": norm_backward(0, 1),
    "aten::cudnn_batch_norm_backward": norm_backward(1, 0),
    "aten::miopen_batch_norm_backward": norm_backward(1, 0),
    "_C::rms_norm": norm_out,
    "_C::fused_add_rms_norm": add_norm,
    "aiter::rms_norm": norm,
    "aiter::rmsnorm": norm_out,
    "aiter::add_rmsnorm": add_norm_out,
    "aiter::rmsnorm2d_fwd_with_add_ck": add_norm_out,
    "aiter::rmsnorm2d_fwd": norm,
    "aiter::layernorm2d_fwd": norm,
    "aiter::_groupnorm_run": norm,
    "sgl_kernel::rmsnorm": norm_out,
    "sgl_kernel::gemma_rmsnorm": norm_out,
    "sgl_kernel::fused_add_rmsnorm": add_norm,
    "sgl_kernel::gemma_fused_add_rmsnorm": add_norm,
    "_C::rms_norm_static_fp8_quant": norm_out,
    "aten::_softmax": softmax,
    "aten::_log_softmax": softmax,
    "aten::_safe_softmax": softmax,
    "aten::_masked_softmax": softmax,
    "aten::_softmax_backward_data": softmax_backward,
    "aten::_log_softmax_backward_data": softmax_backward,
    "aten::nll_loss_forward": nll_loss,
    "aten::nll_loss2d_forward": nll_loss,
    "aten::nll_loss_backward": nll_loss_backward,
    "aten::nll_loss2d_backward": nll_loss_backward,
    "aten::cross_entropy_loss": cross_entropy,
}
