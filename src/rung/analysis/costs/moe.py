"""Mixtures of experts in one operator: two products for each token and each expert that it is sent to.

Which experts are chosen is not recorded. The weights that are read are those of as many experts as there are choices, at
most all: what balanced routing needs. If all tokens choose the same few, less is read than is counted here.
"""

from __future__ import annotations

from rung.analysis.costs.call import Call, Cost, Model, Unknown, precision
from rung.analysis.costs.quantized import sizes


def experts(call: Call) -> Cost:
    """(hidden_states [tokens, n], w1 [experts, 2 m or m, n], w2 [experts, n, m], topk_weights, topk_ids [tokens, k], ...)

    Signatures: vllm/model_executor/layers/fused_moe/fused_moe.py (fused_experts) and aiter/fused_moe.py.
    """
    x, up, down, chosen = call.tensor(0, 2), call.tensor(1, 3), call.tensor(2, 3), call.tensor(4, 2)
    tokens, width = x.shape
    if up.shape[0] != down.shape[0] or up.shape[2] != width or down.shape[1] != width or chosen.shape[0] != tokens:
        raise Unknown
    pairs = chosen.size
    read = min(up.shape[0], pairs)
    weights = (up.bytes + down.bytes) // max(up.shape[0], 1) * read
    flops = 2 * pairs * width * (up.shape[1] + down.shape[2])
    return Cost(flops, 2 * x.bytes + chosen.bytes + weights, precision(up.dtype), matrix=True)


def whole(call: Call) -> Cost:
    """vllm::flashinfer_fused_moe_bf16(routing_logits [tokens, experts], routing_bias, hidden_states [tokens, n], gemm1_weights,
    gemm2_weights, num_experts, top_k, n_group, topk_group, intermediate_size m, local_expert_offset, local_num_experts, ...):
    the weights are laid out for the kernel, so the width of the experts is taken from the numbers. Experts of other ranks get
    their share of the choices.

    Signature: vllm/model_executor/layers/fused_moe/flashinfer_trtllm_moe.py. Two halves are gated: 3 products of n by m.
    """
    x, up, down = call.tensor(2, 2), call.tensor(3), call.tensor(4)
    experts, chosen, inner, local = (_number(call, i) for i in (5, 6, 9, 11))
    if not 0 < local <= experts or chosen > experts or 3 * inner * x.shape[1] * local != up.size + down.size:
        raise Unknown
    pairs = x.shape[0] * chosen * local // experts
    weights = (up.bytes + down.bytes) // local * min(local, pairs)
    moved = 2 * x.bytes + call.tensor(0).bytes + weights
    return Cost(2 * pairs * x.shape[1] * 3 * inner, moved, precision(up.dtype), matrix=True)


def grouped(out: int, a: int, b: int, packed: int = 1) -> Model:
    """One product of all pairs of token and expert, sorted by expert: out [pairs, n], a [pairs, k], b with [experts, ...]. packed:
    elements of `a` in what a shape counts as one.

    Signatures: vLLM's csrc/torch_bindings.cpp (cutlass_moe_mm, cutlass_mxfp8_grouped_mm), SGLang's
    sgl-kernel/csrc/common_extension.cc.
    """

    def model(call: Call) -> Cost:
        result, x, weights = call.tensor(out, 2), call.tensor(a, 2), call.tensor(b, 3)
        pairs, width, inner, experts = *result.shape, x.shape[1] * packed, weights.shape[0]
        stored = weights.bytes // max(experts, 1) * min(experts, pairs)
        # Each expert has width x inner elements, of 4 bits at the least.
        if x.shape[0] != pairs or 2 * weights.bytes < experts * width * inner:
            raise Unknown
        kind = "fp4" if packed == 2 else precision(x.dtype)
        return Cost(2 * pairs * width * inner, x.bytes + result.bytes + stored, kind, matrix=True)

    return model


def narrow_experts(call: Call) -> Cost:
    """_moe_C::moe_wna16_gemm(input [tokens, k], output [tokens, chosen, n] or [pairs, n], b_qweight [experts, n, ...], b_scales,
    b_qzeros, ...): weights of 4 or 8 bits, widened to the input's"""
    x, out, weights = call.tensor(0, 2), call.tensor(1), call.tensor(2, 3)
    width, pairs = out.shape[-1], out.size // max(out.shape[-1], 1)
    if weights.shape[1] != width:
        raise Unknown
    quantized = (weights, call.maybe(3), call.maybe(4))
    read = sum(t.bytes // max(weights.shape[0], 1) * min(weights.shape[0], pairs) for t in quantized if t is not None)
    return Cost(2 * pairs * width * x.shape[1], x.bytes + out.bytes + read, precision(x.dtype), matrix=True)


def marlin(call: Call) -> Cost:
    """moe_wna16_marlin_gemm(a [m, k], c, b_q_weight [experts, ...], ..., topk_weights, moe_block_size, top_k, ..., size_m, size_n,
    size_k, ...): weights of 4 or 8 bits; each row of `a` is multiplied with top_k experts. Versions differ in what stands between.
    """
    a, weights = call.tensor(0, 2), call.tensor(2, 3)
    m, n, k = sizes(call, a)
    numbers = [found[0] for i in range(len(call.values)) if len(found := call.integers(i)) == 1]
    pairs, experts = m * numbers[1], weights.shape[0]
    of_experts = [weights, *(t for i in range(3, 8) if (t := call.maybe(i)) is not None and t.shape[:1] == (experts,))]
    if 8 * weights.bytes < 2 * experts * n * k:  # less than 2 bits an element
        raise Unknown
    read = sum(t.bytes // experts * min(experts, pairs) for t in of_experts)
    return Cost(2 * pairs * n * k, a.bytes + pairs * n * a.item + read, precision(a.dtype), matrix=True)


def _number(call: Call, index: int) -> int:
    found = call.integers(index)
    if len(found) != 1:
        raise Unknown
    return found[0]


MODELS: dict[str, Model] = {
    "vllm::inplace_fused_experts": experts,
    "vllm::outplace_fused_experts": experts,
    "aiter::fused_moe_": experts,
    "aiter::fused_moe": experts,
    "vllm::rocm_aiter_fused_moe": experts,
    "vllm::rocm_aiter_asm_moe_tkw1": experts,
    "vllm::flashinfer_fused_moe_bf16": whole,
    "_C::cutlass_moe_mm": grouped(0, 1, 2),
    "_C::cutlass_mxfp8_grouped_mm": grouped(4, 0, 1),
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm": grouped(0, 6, 7),
    "sgl_kernel::cutlass_fp4_group_mm": grouped(0, 1, 2, packed=2),
    "sgl_kernel::cutlass_w4a8_moe_mm": grouped(0, 1, 2),
    "_moe_C::moe_wna16_gemm": narrow_experts,
    "_moe_C::moe_wna16_marlin_gemm": marlin,
    "sgl_kernel::moe_wna16_marlin_gemm": marlin,
}
