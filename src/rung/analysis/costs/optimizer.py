"""Optimizer steps over lists of tensors, fused and "foreach".

Kineto records no element types of lists (the kernel's name says the size) and, of long lists, not even the shapes:
those calls have no model. Operations an element are counted from the update rules of torch.optim's documentation.
"""

from __future__ import annotations

from rung.analysis.costs.call import Call, Cost, Model, Tensor, Unknown, precision, words


def fused(read_only: int, updated: int, flops: int) -> Model:
    """All lists but those of the step counts: the weights and `updated` - 1 lists of state are read and written.

    read_only: the position of the gradients, which are read. flops: operations an element.
    """

    def model(call: Call) -> Cost:
        weights, grads = call.tensor_list(0), call.tensor_list(read_only)
        size = _size(weights)
        if _size(grads) != size:
            raise Unknown
        state = [value for i, value in enumerate(call.inputs[2 : 1 + updated], 2) if i != read_only]
        kept = sum(_size(value) for value in state if isinstance(value, tuple) and not isinstance(value, Tensor))
        item = weights[0].item
        return Cost(flops * size, (2 * size + size + 2 * kept) * item, precision(weights[0].dtype))

    return model


def unary(call: Call) -> Cost:
    """aten::_foreach_sqrt(self): read, and as much written"""
    return _each(call, 1)


def binary(call: Call) -> Cost:
    """aten::_foreach_add_(self, other, alpha): one or two lists read, one written"""
    other = call.inputs[1] if len(call.inputs) > 1 else None
    both = isinstance(other, tuple) and not isinstance(other, Tensor) and bool(other)
    return _each(call, 2 if both else 1)


def ternary(call: Call) -> Cost:
    """aten::_foreach_addcdiv_(self, tensor1, tensor2, value): three lists read, one written; two operations"""
    return _each(call, 3, flops=2)


def lerp(call: Call) -> Cost:
    """aten::_foreach_lerp_(self, tensors1, weight)"""
    return _each(call, 2, flops=3)


def norms(call: Call) -> Cost:
    """aten::_foreach_norm(self, ord): a number each"""
    lists = call.tensor_list(0)
    return Cost(2 * _size(lists), _size(lists) * lists[0].item + len(lists) * lists[0].item, precision(lists[0].dtype))


def _each(call: Call, read: int, flops: int = 1) -> Cost:
    lists = call.tensor_list(0)
    size, item = _size(lists), lists[0].item
    return Cost(flops * size, (read + 1) * size * item, precision(lists[0].dtype))


def _size(tensors: tuple[Tensor, ...]) -> int:
    return sum(t.size for t in tensors)


_UNARY = words("sqrt neg exp abs reciprocal log sigmoid tanh sign rsqrt")
_BINARY = words("add sub mul div maximum minimum clamp_min clamp_max pow")
_TERNARY = words("addcmul addcdiv")

MODELS: dict[str, Model] = {
    # (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, ...): moments 5, bias corrections, step 8
    "aten::_fused_adam_": fused(1, 4, 13),
    "aten::_fused_adamw_": fused(1, 4, 14),
    "aten::_fused_sgd_": fused(1, 2, 4),
    "aten::_fused_adagrad_": fused(1, 2, 6),
    **{f"aten::_foreach_{name}{end}": unary for name in _UNARY for end in ("", "_")},
    **{f"aten::_foreach_{name}{end}": binary for name in _BINARY for end in ("", "_")},
    **{f"aten::_foreach_{name}{end}": ternary for name in _TERNARY for end in ("", "_")},
    "aten::_foreach_lerp": lerp,
    "aten::_foreach_lerp_": lerp,
    "aten::_foreach_norm": norms,
}
