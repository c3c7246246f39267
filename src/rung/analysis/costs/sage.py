"""SageAttention: queries and keys in int8, weights of the softmax and values in fp8 or 16 bits.

Two products, and with a causal mask only the pairs that it leaves. Both count at the rate of int8, the higher one. Each tensor is
read or written once. Of the Triton kernel `sage_fwd` nothing recorded says whether its mask is causal: it has no model.
"""

from __future__ import annotations

from rung.analysis.costs.attention import pairs
from rung.analysis.costs.call import Call, Cost, Model, Unknown, precision


def forward(tensors: int) -> Model:
    """(query, key, value, output, query_scale, key_scale, ...), `tensors` of them, tensor_layout, is_causal, ...

    Layout 0 is [batch, length, heads, head_dim], 1 [batch, heads, length, head_dim]; the values may be laid out for the kernel.
    """

    def model(call: Call) -> Cost:
        q, k, out = call.tensor(0, 4), call.tensor(1, 4), call.tensor(3, 4)
        layout, causal = call.text(tensors), call.text(tensors + 1)
        if layout not in ("0", "1") or causal not in ("0", "1") or q.shape != out.shape or k.shape[3] != q.shape[3]:
            raise Unknown
        at = 1 + int(layout)
        seen = pairs(q.shape[at], k.shape[at], causal == "1", last_key=False)
        moved = sum(call.tensor(i).bytes for i in range(tensors))
        return Cost(4 * q.shape[0] * q.shape[3 - at] * seen * q.shape[3], moved, "int8", matrix=True)

    return model


def cast(call: Call) -> Cost:
    """aiter's sage_quant_kernel(q, q_int8, q_scale, k, k_int8, k_scale, v, v_fp8, v_scale, ...): one operation an element"""
    read = [call.tensor(i, 4) for i in (0, 3, 6)]
    if any(source.shape != call.tensor(i).shape for source, i in zip(read, (1, 4, 7), strict=True)):
        raise Unknown
    return Cost(sum(x.size for x in read), sum(call.tensor(i).bytes for i in range(9)), precision(read[0].dtype))


# sageattention/sm80_compile.py, sm89_compile.py and sm90_compile.py of SageAttention at d1a57a5.
MODELS: dict[str, Model] = {
    "sageattention::qk_int8_sv_f16_accum_f16_attn": forward(6),
    "sageattention::qk_int8_sv_f16_accum_f32_attn": forward(6),
    "sageattention::qk_int8_sv_f16_accum_f16_attn_inst_buf": forward(6),
    "sageattention::qk_int8_sv_f16_accum_f16_fuse_v_mean_attn": forward(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn": forward(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf": forward(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf": forward(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f32_fuse_v_scale_fuse_v_mean_attn": forward(8),
    "sageattention_sm90::qk_int8_sv_f8_accum_f32_attn_inst_buf": forward(6),
    "sageattention_sm90::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf": forward(7),
}
CASTS: dict[str, Model] = {"sage_quant_kernel": cast}
