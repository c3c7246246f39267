"""Choosing: tokens by their probabilities, experts by their scores. One pass over what is chosen from.

Operations: one an element that is looked at, the least; a softmax beside it 5 (as in normalization.py). Bytes: each tensor
once. How often a kernel goes over the probabilities to find a threshold depends on them, and is not counted.

Signatures: SGLang's sgl-kernel/csrc/common_extension.cc, which has FlashInfer's sampling; vLLM's csrc/torch_bindings.cpp and
csrc/moe/torch_bindings.cpp; aiter's ops/moe_op.py and topk.py.
"""

from __future__ import annotations

from rung.analysis.costs.call import Call, Cost, Model, precision

_SOFTMAX = 5


def once(source: int, each: int = 1) -> Model:
    """Every tensor that is recorded is read or written once; `each` operations for an element of the source."""

    def model(call: Call) -> Cost:
        x = call.tensor(source)
        return Cost(each * x.size, sum(t.bytes for t in call.tensors), precision(x.dtype))

    return model


def replaced(call: Call) -> Cost:
    """_C::apply_repetition_penalties_(logits, prompt_mask, output_mask, repetition_penalties): logits are read and written"""
    cost, logits = once(0)(call), call.tensor(0)
    return Cost(cost.flops, cost.bytes + logits.bytes, cost.precision)


MODELS: dict[str, Model] = {
    **{f"sgl_kernel::{name}": once(0) for name in ("top_k_renorm_probs", "top_p_renorm_probs", "min_p_sampling_from_probs",
                                                   "top_p_sampling_from_probs", "top_k_top_p_sampling_from_probs",
                                                   "top_k_mask_logits")},
    "_C::apply_repetition_penalties_": replaced,
    "_C::top_k_per_row_prefill": once(0),
    "_C::top_k_per_row_decode": once(0),
    "_moe_C::topk_softmax": once(3, _SOFTMAX),
    "sgl_kernel::topk_softmax": once(2, _SOFTMAX),
    "vllm::rocm_aiter_topk_softmax": once(3, _SOFTMAX),
    "aiter::topk_softmax": once(3, _SOFTMAX),
    "vllm::rocm_aiter_grouped_topk": once(0, _SOFTMAX),
    "vllm::rocm_aiter_biased_grouped_topk": once(0, _SOFTMAX),
    "sgl_kernel::moe_fused_gate": once(0, _SOFTMAX),
    "_moe_C::moe_align_block_size": once(0),
    "sgl_kernel::moe_align_block_size": once(0),
    "_moe_C::moe_sum": once(0),
    "sgl_kernel::shuffle_rows": once(0),
}  # fmt: skip
