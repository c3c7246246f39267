"""Products whose factors are stored in 8 or 4 bits, and the casts to these formats.

2 m n k operations at the rate of the narrower factor where the kernel multiplies in it (fp8, int8, fp4: both factors are
quantized), else at that of the activations (4-bit weights beside 16-bit activations are widened first). Bytes: factors as they
are stored, scales and zeros as recorded, a bias, the result. Two elements of fp4 come in what a shape counts as one.

Signatures: vLLM's csrc/torch_bindings.cpp, vllm/_aiter_ops.py and vllm/model_executor/layers/quantization/utils/fp8_utils.py,
SGLang's sgl-kernel/csrc/common_extension.cc, aiter's ops/gemm_op_a8w8.py and gemm_op_a4w4.py.
"""

from __future__ import annotations

from rung.analysis.costs.call import ITEM, SCALAR_TYPES, Call, Cost, Model, Tensor, Unknown, precision

_PACKED = {"uint8": "fp4", "fp4": "fp4", "int8": "fp4"}  # how two elements of fp4 are recorded


def _product(
    a: Tensor, b: Tensor, rows: int, columns: int, inner: int, kind: str, out: int, *more: Tensor | None
) -> Cost:
    """out: bytes of an element of the result."""
    read = a.bytes + b.bytes + sum(t.bytes for t in more if t is not None)
    return Cost(2 * rows * columns * inner, read + rows * columns * out, kind, matrix=True)


def beside_scales(call: Call) -> Cost:
    """DeepGEMM's (a [m, k], a_scale, weight [n, k], weight_scale, out [m, n], ...), in fp8"""
    a, weight, out = call.tensor(0, 2), call.tensor(2, 2), call.tensor(4, 2)
    if out.shape != (a.shape[0], weight.shape[0]) or a.shape[1] != weight.shape[1]:
        raise Unknown
    return _product(a, weight, *out.shape, a.shape[1], _both(a), out.item, call.maybe(1), call.maybe(3))


def cast_within(call: Call) -> Cost:
    """vllm::flashinfer_fp8_blockscale_gemm(input [m, k] in 16 bits, weight [n, k], weight_scale, ...): cast to fp8 on the way"""
    x, weight = call.tensor(0, 2), call.tensor(1, 2)
    if x.shape[1] != weight.shape[1]:
        raise Unknown
    return _product(x, weight, x.shape[0], weight.shape[0], x.shape[1], precision(weight.dtype), 2, call.maybe(2))


def _both(a: Tensor) -> str:
    return "int8" if a.dtype in ("int8", "uint8") else precision(a.dtype)


def linear(*more: int) -> Model:
    """(x [m, k], weight [n, k], ...), and at `more` scales and a bias: 16-bit results"""

    def model(call: Call) -> Cost:
        x, weight = call.tensor(0), call.tensor(1, 2)
        if not x.shape or x.shape[-1] != weight.shape[1]:
            raise Unknown
        rows = x.size // max(x.shape[-1], 1)
        return _product(x, weight, rows, weight.shape[0], weight.shape[1], _both(x), 2, *(call.maybe(i) for i in more))

    return model


def scaled(out_dtype: int, *more: int) -> Model:
    """(a [m, k], b [k, n], ...), out_dtype: where the type of the result is"""

    def model(call: Call) -> Cost:
        a, b = call.tensor(0, 2), call.tensor(1, 2)
        if a.shape[1] != b.shape[0]:
            raise Unknown
        number = call.integers(out_dtype)
        item = ITEM[SCALAR_TYPES.get(number[0], "bf16")] if number else 2
        return _product(a, b, a.shape[0], b.shape[1], a.shape[1], _both(a), item, *(call.maybe(i) for i in more))

    return model


def scaled_out(call: Call) -> Cost:
    """_C::cutlass_scaled_mm(out [m, n], a [m, k], b [k, n], a_scales, b_scales, bias or azp_adj, azp, bias)"""
    out, a, b = (call.tensor(i, 2) for i in range(3))
    if a.shape[1] != b.shape[0]:
        raise Unknown
    rest = (call.maybe(i) for i in range(3, 8))
    return _product(a, b, a.shape[0], b.shape[1], a.shape[1], _both(a), out.item, *rest)


def fp4_out(call: Call) -> Cost:
    """cutlass_scaled_fp4_mm(out [m, n], a [m, k/2], b [n, k/2], block_scale_a, block_scale_b, alpha)"""
    out, a, b = (call.tensor(i, 2) for i in range(3))
    return _fp4(a, b, out.item, *(call.maybe(i) for i in (3, 4, 5)))


def fp4_linear(call: Call) -> Cost:
    """aiter::gemm_a4w4(A [m, k/2], B [n, k/2], A_scale, B_scale, ...): 16-bit results"""
    return _fp4(call.tensor(0, 2), call.tensor(1, 2), 2, call.maybe(2), call.maybe(3))


def _fp4(a: Tensor, b: Tensor, out: int, *more: Tensor | None) -> Cost:
    if a.shape[1] != b.shape[1] or a.dtype not in _PACKED or b.dtype not in _PACKED:
        raise Unknown
    return _product(a, b, a.shape[0], b.shape[0], 2 * a.shape[1], "fp4", out, *more)


def narrow_weights(*more: int) -> Model:
    """(a [m, k] in 16 bits, weight in 32-bit words, ...) whose scales [groups, n] are the first at `more`"""

    def model(call: Call) -> Cost:
        a, weight, scales = call.tensor(0, 2), call.tensor(1), call.tensor(more[0], 2)
        if weight.bytes * 8 < a.shape[1] * scales.shape[1] * 2:  # less than 2 bits an element
            raise Unknown
        rest = (call.maybe(i) for i in more)
        return _product(a, weight, a.shape[0], scales.shape[1], a.shape[1], precision(a.dtype), a.item, *rest)

    return model


def wide_words(call: Call) -> Cost:
    """machete_mm(A [m, k], B [.., n] prepacked, b_type, out_type, group_scales, group_zeros, ...)"""
    a, weight = call.tensor(0, 2), call.tensor(1, 2)
    more = (call.maybe(i) for i in (4, 5, 7, 8))
    return _product(a, weight, a.shape[0], weight.shape[1], a.shape[1], precision(a.dtype), 2, *more)


def marlin(call: Call) -> Cost:
    """marlin_gemm and gptq_marlin_gemm(a [m, k], c, b_q_weight, b_bias or b_scales, ..., size_m, size_n, size_k, ...): versions
    differ in what stands between, the sizes say themselves where they are"""
    a, weight = call.tensor(0, 2), call.tensor(2)
    m, n, k = sizes(call, a)
    # c is the result; the workspace, which is the last tensor, is no part of the least.
    rest = [t for i in range(3, len(call.inputs)) if (t := call.maybe(i)) is not None][:-1]
    return _product(a, weight, m, n, k, precision(a.dtype), 2, *rest)


def sizes(call: Call, a: Tensor) -> tuple[int, int, int]:
    """The numbers m, n, k among the arguments, of which m and k are those of a."""
    numbers = [found[0] if len(found := call.integers(i)) == 1 else 0 for i in range(len(call.values))]
    for m, n, k in zip(numbers, numbers[1:], numbers[2:], strict=False):
        if (m, k) == a.shape and n > 0:
            return m, n, k
    raise Unknown


def cast(source: int, *targets: int) -> Model:
    """The source is read, the quantized result and its scales written: one operation an element, a product with the scale"""

    def model(call: Call) -> Cost:
        x = call.tensor(source)
        written = [call.tensor(targets[0]), *(call.maybe(i) for i in targets[1:])]
        return Cost(x.size, x.bytes + sum(t.bytes for t in written if t is not None), precision(x.dtype))

    return model


MODELS: dict[str, Model] = {
    **{f"aiter::gemm_a8w8{form}": linear(2, 3) for form in ("", "_CK", "_bpreshuffle", "_blockscale")},
    "vllm::rocm_aiter_gemm_a8w8": linear(2, 3, 4),
    "vllm::rocm_aiter_gemm_a8w8_blockscale": linear(2, 3),
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale": linear(2, 3),
    "vllm::w8a8_block_fp8_matmul_deepgemm": linear(2, 3),
    "vllm::w8a8_triton_block_scaled_mm_func": linear(2, 3),
    "vllm::padded_cutlass": linear(2, 3),
    "vllm::fp8_gemm_nt_op": beside_scales,
    "sglang::deep_gemm_fp8_fp8_bf16_nt": beside_scales,
    "vllm::flashinfer_fp8_blockscale_gemm": cast_within,
    "_C::cutlass_scaled_mm": scaled_out,
    "_C::cutlass_scaled_mm_azp": scaled_out,
    "sgl_kernel::fp8_scaled_mm": scaled(4, 2, 3, 5),
    "sgl_kernel::int8_scaled_mm": scaled(4, 2, 3, 5),
    "sgl_kernel::fp8_blockwise_scaled_mm": scaled(4, 2, 3),
    "_C::cutlass_scaled_fp4_mm": fp4_out,
    "sgl_kernel::cutlass_scaled_fp4_mm": fp4_out,
    "aiter::gemm_a4w4": fp4_linear,
    "_C::awq_gemm": narrow_weights(2, 3),
    "_C::gptq_gemm": narrow_weights(3, 2),
    "sgl_kernel::gptq_gemm": narrow_weights(3, 2),
    "_C::allspark_w8a16_gemm": narrow_weights(2, 3),
    "_C::machete_mm": wide_words,
    "_C::marlin_gemm": marlin,
    "_C::gptq_marlin_gemm": marlin,
    "sgl_kernel::gptq_marlin_gemm": marlin,
}

CASTS: dict[str, Model] = {
    "_C::static_scaled_fp8_quant": cast(1, 0),
    "_C::dynamic_scaled_fp8_quant": cast(1, 0, 2),
    "_C::dynamic_per_token_scaled_fp8_quant": cast(1, 0, 2),
    "_C::static_scaled_int8_quant": cast(1, 0),
    "_C::dynamic_scaled_int8_quant": cast(1, 0, 2),
    "sgl_kernel::sgl_per_token_group_quant_fp8": cast(0, 1, 2),
    "sgl_kernel::sgl_per_token_group_quant_int8": cast(0, 1, 2),
    "sgl_kernel::sgl_per_tensor_quant_fp8": cast(0, 1, 2),
    "sgl_kernel::sgl_per_token_quant_fp8": cast(0, 1, 2),
    "sgl_kernel::scaled_fp4_quant": cast(1, 0, 2),
}
