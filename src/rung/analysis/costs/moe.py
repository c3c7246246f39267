"""Mixtures of experts in one operator: two products for each token and each expert that it is sent to.

Which experts are chosen is not recorded. The weights that are read are those of as many experts as there are choices, at
most all: what balanced routing needs. If all tokens choose the same few, less is read than is counted here.
"""

from __future__ import annotations

from rung.analysis.costs.call import Call, Cost, Model, Unknown, precision


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


MODELS: dict[str, Model] = {
    "vllm::inplace_fused_experts": experts,
    "vllm::outplace_fused_experts": experts,
    "aiter::fused_moe_": experts,
    "aiter::fused_moe": experts,
}
