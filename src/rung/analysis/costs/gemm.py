"""Matrix products: 2 m n k operations each, as torch.utils.flop_counter counts them (a bias is not counted); 8 m n k
of complex numbers, which the counter takes for real ones.

Bytes: both factors read, the result written, and a bias or addend read; an expanded factor counts what it stores.
"""

from __future__ import annotations

import math

from rung.analysis.costs.call import ITEM, SCALAR_TYPES, Call, Cost, Model, Tensor, Unknown, broadcast, precision


def product(a: Tensor, b: Tensor, out: int, inner: int, *more: Tensor | None, dtype: str = "") -> Cost:
    """out: elements of the result; inner: the length of the dot products; more: further inputs that are read."""
    result = dtype or a.dtype
    read = sum(t.bytes for t in (a, b, *more) if t is not None)
    kind = "int8" if a.dtype in ("int8", "uint8") else precision(a.dtype)
    # A complex multiplication is four real ones and two additions, its addition two: four times a real one's work.
    factor = 8 if a.dtype.startswith("complex") else 2
    return Cost(factor * out * inner, read + out * ITEM[result], kind, matrix=True)


def mm(call: Call) -> Cost:
    """aten::mm(self [m, k], mat2 [k, n])"""
    return _two(call, 0, None)


def int_mm(call: Call) -> Cost:
    """aten::_int_mm(self [m, k], mat2 [k, n]): int8 factors, 32-bit results"""
    return _two(call, 0, None, "int32")


def addmm(call: Call) -> Cost:
    """aten::addmm(self, mat1 [m, k], mat2 [k, n])"""
    return _two(call, 1, 0)


def _two(call: Call, first: int, addend: int | None, dtype: str = "") -> Cost:
    a, b = call.tensor(first, 2), call.tensor(first + 1, 2)
    if a.shape[1] != b.shape[0]:
        raise Unknown
    more = call.maybe(addend) if addend is not None else None
    return product(a, b, a.shape[0] * b.shape[1], a.shape[1], more, dtype=dtype)


def bmm(call: Call) -> Cost:
    """aten::bmm(self [b, m, k], mat2 [b, k, n])"""
    return _batched(call.tensor(0, 3), call.tensor(1, 3))


def baddbmm(call: Call) -> Cost:
    """aten::baddbmm(self, batch1 [b, m, k], batch2 [b, k, n])"""
    return _batched(call.tensor(1, 3), call.tensor(2, 3), call.maybe(0))


def _batched(a: Tensor, b: Tensor, *more: Tensor | None) -> Cost:
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise Unknown
    return product(a, b, a.shape[0] * a.shape[1] * b.shape[2], a.shape[2], *more)


def matmul(call: Call) -> Cost:
    """aten::matmul(self [..., m, k], other [..., k, n]), batches broadcast; a vector is a row or a column."""
    a, b = call.tensor(0), call.tensor(1)
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if not a.shape or not b.shape or left[-1] != right[-2]:
        raise Unknown
    batch = broadcast(Tensor(left[:-2], a.dtype, 0), Tensor(right[:-2], b.dtype, 0))
    return product(a, b, math.prod(batch) * left[-2] * right[-1], left[-1])


def linear(call: Call) -> Cost:
    """aten::linear(input [..., k], weight [n, k], bias), and the custom operators of the same form."""
    x, weight = call.tensor(0), call.tensor(1, 2)
    if not x.shape or x.shape[-1] != weight.shape[1]:
        raise Unknown
    return product(x, weight, x.size // max(x.shape[-1], 1) * weight.shape[0], weight.shape[1], call.maybe(2))


def scaled_mm(call: Call) -> Cost:
    """aten::_scaled_mm(self [m, k], mat2 [k, n], scale_a, scale_b, bias, scale_result, out_dtype): fp8 or fp4 factors"""
    a, b = call.tensor(0, 2), call.tensor(1, 2)
    if a.shape[1] != b.shape[0]:
        raise Unknown
    inner = a.shape[1] * (2 if a.dtype == "fp4" else 1)  # two elements in what a shape counts as one
    return product(a, b, a.shape[0] * b.shape[1], inner, *(call.maybe(i) for i in (2, 3, 4)), dtype=_out(call, 6, ""))


def mm_out(call: Call) -> Cost:
    """dsv3_fused_a_gemm(output [m, n], mat_a [m, k], mat_b [k, n])"""
    out, a, b = (call.tensor(i, 2) for i in range(3))
    if a.shape[1] != b.shape[0]:
        raise Unknown
    return product(a, b, out.size, a.shape[1], dtype=out.dtype)


def linear_out(call: Call) -> Cost:
    """dsv3_router_gemm(output [m, n], mat_a [m, k], mat_b [n, k])"""
    out, a, b = (call.tensor(i, 2) for i in range(3))
    if a.shape[1] != b.shape[1]:
        raise Unknown
    return product(a, b, out.size, a.shape[1], dtype=out.dtype)


def grouped_mm(call: Call) -> Cost:
    """aten::_grouped_mm(self, mat2, offs, bias, out_dtype): one product a group, rows, columns or inner parts of a
    matrix divided among the groups by `offs`. However they are divided, each row meets its group's matrix once.
    """
    return _grouped(call, call.maybe(2), dtype=_out(call, 4, ""))


def scaled_grouped_mm(call: Call) -> Cost:
    """aten::_scaled_grouped_mm(self, mat2, scale_a, scale_b, offs, bias, scale_result, out_dtype)"""
    return _grouped(call, call.maybe(2), call.maybe(3), dtype=_out(call, 7))


def _grouped(call: Call, *more: Tensor | None, dtype: str) -> Cost:
    a, b = call.tensor(0), call.tensor(1)
    ranks = len(a.shape), len(b.shape)
    if ranks not in ((2, 2), (2, 3), (3, 2), (3, 3)) or a.shape[-1] != b.shape[-2]:
        raise Unknown
    (m, k), n = a.shape[-2:], b.shape[-1]
    if ranks == (3, 3):
        if a.shape[0] != b.shape[0]:
            raise Unknown
        return product(a, b, a.shape[0] * m * n, k, *more, dtype=dtype)
    if ranks == (2, 2):  # the inner dimension is divided: a result for each group, of which the lengths add up to k
        offsets = call.tensor(2, 1) if "scaled" not in call.name else call.tensor(4, 1)
        cost = product(a, b, m * n, k, *more, dtype=dtype)
        extra = (offsets.shape[0] - 1) * m * n * ITEM[dtype or a.dtype]
        return Cost(cost.flops, cost.bytes + max(extra, 0), cost.precision, matrix=True)
    return product(a, b, m * n, k, *more, dtype=dtype)


def mv(call: Call) -> Cost:
    """aten::mv(self [m, k], vec [k])"""
    a, x = call.tensor(0, 2), call.tensor(1, 1)
    return product(a, x, a.shape[0], a.shape[1])


def addmv(call: Call) -> Cost:
    """aten::addmv(self, mat [m, k], vec [k])"""
    a, x = call.tensor(1, 2), call.tensor(2, 1)
    return product(a, x, a.shape[0], a.shape[1], call.maybe(0))


def dot(call: Call) -> Cost:
    """aten::dot(self [k], tensor [k])"""
    a, b = call.tensor(0, 1), call.tensor(1, 1)
    return product(a, b, 1, a.shape[0])


def _out(call: Call, index: int, default: str = "bf16") -> str:
    number = call.integers(index)
    return SCALAR_TYPES.get(number[0], default) if number else default


MODELS: dict[str, Model] = {
    "aten::mm": mm,
    "aten::addmm": addmm,
    "aten::_addmm_activation": addmm,
    "aten::_int_mm": int_mm,
    "aten::bmm": bmm,
    "aten::baddbmm": baddbmm,
    "aten::matmul": matmul,
    "aten::linear": linear,
    "aten::mv": mv,
    "aten::addmv": addmv,
    "aten::dot": dot,
    "aten::vdot": dot,
    "aten::_scaled_mm": scaled_mm,
    "aten::_grouped_mm": grouped_mm,
    "aten::_scaled_grouped_mm": scaled_grouped_mm,
    # AMD's and vLLM's own
    "vllm::rocm_unquantized_gemm": linear,
    "vllm::rocm_unquantized_gemm_impl": linear,
    "aiter::gemm_a16w16": linear,
    "aiter::hipb_mm": mm,
    "_C::dsv3_fused_a_gemm": mm_out,
    "sgl_kernel::dsv3_fused_a_gemm": mm_out,
    "sgl_kernel::dsv3_router_gemm": linear_out,
    "_rocm_C::wvSplitK": linear,
    "_rocm_C::LLMM1": linear,
}
