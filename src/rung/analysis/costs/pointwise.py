"""Elementwise operators and reductions: one operation an element, every input read once, the result written once.

An exponential takes more than one operation, but no chip is so slow at it that one of these would not be bound by memory.
"""

from __future__ import annotations

import math

from rung.analysis.costs.call import ITEM, Call, Cost, Dims, Model, Tensor, Unknown, broadcast, precision, wider, words


def elementwise(call: Call) -> Cost:
    """The result has the shape that the inputs broadcast to and the widest type of those with the most dimensions."""
    tensors, out = _given(call)
    return _elementwise(tensors, out.dtype if out else _result(tensors))


def comparison(call: Call) -> Cost:
    """As `elementwise`, with a result of truth values."""
    tensors, out = _given(call)
    return _elementwise(tensors, out.dtype if out else "bool")


def _given(call: Call) -> tuple[list[Tensor], Tensor | None]:
    """The tensors that are read, and one to write the result into, where the overload takes it: it comes last."""
    tensors = call.tensors
    if not tensors:
        raise Unknown
    read = ARITY.get(call.name.removeprefix("aten::"), len(tensors))
    return tensors[:read], tensors[-1] if len(tensors) > read else None


def in_place(call: Call) -> Cost:
    """The first input is read with the others and replaced."""
    target = call.tensor(0)
    return _elementwise(call.tensors, target.dtype)


def _elementwise(tensors: list[Tensor], result: str) -> Cost:
    size = math.prod(broadcast(*tensors))
    return Cost(size, sum(t.bytes for t in tensors) + size * ITEM[result], precision(wider(*tensors)))


def _result(tensors: list[Tensor]) -> str:
    """Torch's type promotion: tensors without dimensions only count among their like, and truth values never."""
    arrays = [t for t in tensors if t.shape] or tensors
    return wider(*([t for t in arrays if t.dtype != "bool"] or arrays))


def where(call: Call) -> Cost:
    """aten::where(condition, self, other)"""
    if call.maybe(1) is None and call.maybe(2) is None:
        raise Unknown
    return elementwise(call)


def gated(call: Call) -> Cost:
    """_C::silu_and_mul(out [..., n], input [..., 2 n]): act(first half) x second half"""
    out, x = call.tensor(0), call.tensor(1)
    return Cost(5 * out.size, out.bytes + x.bytes, precision(x.dtype))


def glu(call: Call) -> Cost:
    """aten::glu(self, dim): first half x sigmoid(second half)"""
    x = call.tensor(0)
    return Cost(5 * x.size // 2, x.bytes + x.size // 2 * x.item, precision(x.dtype))


def dropout(call: Call) -> Cost:
    """aten::native_dropout(input, p, train): the result and a mask of truth values are written"""
    x = call.tensor(0)
    return Cost(2 * x.size, x.bytes + x.size * (x.item + 1), precision(x.dtype))


def rope(call: Call) -> Cost:
    """Rotary embedding of q and k in place: _C::rotary_embedding(positions, query, key, head_size, cos_sin_cache, ...)"""
    q = call.tensor(1)
    k = call.maybe(2)
    moved = 2 * q.bytes + (2 * k.bytes if k else 0) + call.tensor(0).bytes
    return Cost(3 * (q.size + (k.size if k else 0)), moved, precision(q.dtype))


def reduction(call: Call) -> Cost:
    """aten::sum, mean, amax ...(self, dim, ...): without a dimension, to one number"""
    x = call.tensor(0)
    return Cost(x.size, x.bytes + _left(x, call.integers(1)) * x.item, precision(x.dtype))


def norm(call: Call) -> Cost:
    """aten::linalg_vector_norm(self, ord, dim, ...): two operations an element"""
    x = call.tensor(0)
    return Cost(2 * x.size, x.bytes + _left(x, call.integers(2)) * x.item, precision(x.dtype))


def index_of(call: Call) -> Cost:
    """aten::argmax(self, dim): the result counts in 64 bits"""
    x = call.tensor(0)
    return Cost(x.size, x.bytes + _left(x, call.integers(1)) * 8, precision(x.dtype))


def value_and_index(call: Call) -> Cost:
    """aten::max(self, dim), min, median: values and their places; without a dimension one value, of two tensors the larger"""
    if call.maybe(1) is not None:
        return elementwise(call)
    x, dims = call.tensor(0), call.integers(1)
    left = _left(x, dims)
    return Cost(x.size, x.bytes + left * (x.item + (8 if dims else 0)), precision(x.dtype))


def scan(call: Call) -> Cost:
    """aten::cumsum(self, dim) and others that write as much as they read"""
    x = call.tensor(0)
    item = 8 if x.dtype in ("bool", "uint8", "int8", "int16", "int32") else x.item
    return Cost(x.size, x.bytes + x.size * item, precision(x.dtype))


def loss(call: Call) -> Cost:
    """aten::mse_loss(self, target, reduction): 0 leaves the losses as they are, else one number"""
    x, target = call.tensor(0), call.tensor(1)
    size = math.prod(broadcast(x, target))
    out = size if call.text(2) == "0" else 1
    return Cost(3 * size, x.bytes + target.bytes + out * x.item, precision(x.dtype))


def _left(x: Tensor, dims: Dims) -> int:
    """How many numbers remain when these dimensions are reduced; one where none is named."""
    if not dims or not x.shape:
        return 1
    rank = len(x.shape)
    reduced = {d % rank for d in dims if -rank <= d < rank}
    return math.prod(size for i, size in enumerate(x.shape) if i not in reduced)


_ELEMENTWISE = words("""
add sub rsub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 abs neg sign sgn
exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh erf erfc erfinv
sigmoid logit relu relu6 gelu silu mish elu celu selu leaky_relu hardtanh hardsigmoid hardswish softplus softshrink
hardshrink threshold prelu _prelu_kernel clamp clamp_min clamp_max clip ceil floor round trunc frac square lerp
addcmul addcdiv bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift nan_to_num
where masked_fill tril triu threshold_backward tanh_backward sigmoid_backward gelu_backward silu_backward
mish_backward elu_backward leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward
softplus_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
native_dropout_backward conj_physical copysign ldexp hypot heaviside xlogy rad2deg deg2rad
""")
# How many tensors these take; one more is to hold the result.
_ONE = words("""
abs neg sign sgn exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh erf erfc
erfinv sigmoid ceil floor trunc frac square bitwise_not logical_not nan_to_num
""")
_TWO = words("""
add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin atan2 bitwise_and bitwise_or bitwise_xor
bitwise_left_shift bitwise_right_shift copysign ldexp hypot heaviside xlogy eq ne lt le gt ge logical_and logical_or logical_xor
""")
ARITY = dict.fromkeys(_ONE, 1) | dict.fromkeys(_TWO, 2)
_COMPARISONS = words(
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite isneginf isposinf"
)
_REDUCTIONS = words(
    "sum mean amax amin prod all any nansum nanmean logsumexp std var std_mean var_mean count_nonzero aminmax"
)
_SCANS = words("cumsum cumprod logcumsumexp cummax cummin")

MODELS: dict[str, Model] = {
    **{f"aten::{name}": elementwise for name in _ELEMENTWISE},
    **{f"aten::{name}_": in_place for name in (*_ELEMENTWISE, *_COMPARISONS)},
    **{f"aten::{name}": comparison for name in _COMPARISONS},
    **{f"aten::{name}": reduction for name in _REDUCTIONS},
    **{f"aten::{name}": scan for name in _SCANS},
    "aten::where": where,
    "aten::norm": norm,
    "aten::linalg_vector_norm": norm,
    "aten::argmax": index_of,
    "aten::argmin": index_of,
    "aten::max": value_and_index,
    "aten::min": value_and_index,
    "aten::median": value_and_index,
    "aten::mse_loss": loss,
    "aten::smooth_l1_loss": loss,
    "aten::huber_loss": loss,
    "aten::l1_loss": loss,
    "aten::binary_cross_entropy": loss,
    "aten::native_dropout": dropout,
    "aten::_fused_dropout": dropout,
    "aten::glu": glu,
    "_C::silu_and_mul": gated,
    "_C::gelu_and_mul": gated,
    "_C::gelu_tanh_and_mul": gated,
    "aiter::silu_and_mul": gated,
    "aiter::gelu_and_mul": gated,
    "aiter::gelu_tanh_and_mul": gated,
    "sgl_kernel::silu_and_mul": gated,
    "sgl_kernel::gelu_and_mul": gated,
    "sgl_kernel::gelu_tanh_and_mul": gated,
    "_C::silu_and_mul_quant": gated,
    "_C::swigluoai_and_mul": gated,
    "_C::rotary_embedding": rope,
    "sgl_kernel::rotary_embedding": rope,
}
