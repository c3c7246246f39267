"""Attention: softmax(q k^T) v, of which the two products are counted.

Forward: 2 products of (queries x keys) x head_dim each; backward: 5 (the scores again, and one each for the gradients
of v, scores, q and k), as torch.utils.flop_counter counts them. With a causal mask only the pairs that it leaves are
counted, which flop_counter does not do. Bytes: q, k and v read, the result written, and the log-sum-exp of each row in
fp32; backward reads all of them and the gradient of the result, and writes those of q, k and v. Windows, soft caps and
dropout are not counted: with a window the figures are too high.

SageAttention has queries and keys in int8, weights of the softmax and values in fp8 or 16 bits. Both products count at the rate of int8, the
higher one. Each tensor is read or written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rung.analysis.costs.call import Call, Cost, Model, Tensor, Unknown, precision
from rung.analysis.server_steps import Lengths, read_step


class Form(NamedTuple):
    """Where an operator has its inputs. q: the position of the queries, keys and values follow.

    heads_first: [batch, heads, length, head_dim], else [batch, length, heads, head_dim].
    causal: the position of the flag, or of the kind of mask (0 is none, 2 aligned to the last key).
    lengths: the position of the cumulative lengths of the queries, where sequences are packed as
        [all tokens, heads, head_dim]; those of the keys follow.
    mask: the position of a mask or bias that is read.
    """

    q: int = 0
    heads_first: bool = True
    causal: int = -1
    lengths: int = -1
    mask: int = -1
    last_key: bool = False


def pairs(queries: int, keys: int, causal: bool, last_key: bool) -> int:
    """How many pairs of query and key a causal mask leaves.

    last_key: query i sees the keys up to keys - queries + i, so that the last query sees all; else up to i.
    """
    if not causal:
        return queries * keys
    shift = keys - queries if last_key else 0
    # Query i sees max(0, min(keys, i + 1 + shift)).
    first = max(0, -shift)  # the first query that sees a key
    full = max(first, min(queries, keys - shift))  # from here on they see all
    rising = full - first
    start = first + 1 + shift
    return rising * start + rising * (rising - 1) // 2 + max(0, queries - full) * keys


def forward(form: Form) -> Model:
    def model(call: Call) -> Cost:
        q, k, v = (call.tensor(form.q + i) for i in range(3))
        flops, rows = _flops(call, form, q, k, v, (1, 1))
        mask = call.maybe(form.mask) if form.mask >= 0 else None
        out = rows * v.shape[-1] * q.item
        moved = q.bytes + k.bytes + v.bytes + out + rows * 4 + (mask.bytes if mask else 0)
        cache = k.bytes + v.bytes if _more_keys(form, q, k) else 0
        return Cost(flops, moved, precision(q.dtype), matrix=True, cache=cache)

    return model


def _more_keys(form: Form, q: Tensor, k: Tensor) -> bool:
    """Whether there are keys of tokens without a query: where q, k and v are new they are as many, so these were cached."""
    length = -2 if form.heads_first else -3
    return k.shape[length] > q.shape[length]


def backward(form: Form) -> Model:
    def model(call: Call) -> Cost:
        q, k, v = (call.tensor(form.q + i) for i in range(3))
        flops, rows = _flops(call, form, q, k, v, (3, 2))
        mask = call.maybe(form.mask) if form.mask >= 0 else None
        read = q.bytes + k.bytes + v.bytes + 2 * rows * v.shape[-1] * q.item + rows * 4 + (mask.bytes if mask else 0)
        return Cost(flops, read + (q.size + k.size + v.size) * q.item, precision(q.dtype), matrix=True)

    return model


def _flops(call: Call, form: Form, q: Tensor, k: Tensor, v: Tensor, products: tuple[int, int]) -> tuple[int, int]:
    """The operations, and the rows of the score matrix (queries of all heads).

    products: how many of them are as long as the heads of q and k, and how many as those of v.
    """
    causal = form.causal >= 0 and call.text(form.causal) not in ("", "False", "false", "0")
    last_key = form.last_key or call.text(form.causal) == "2"
    packed = form.lengths >= 0 and call.maybe(form.lengths) is not None
    if packed:
        # Only the number of sequences is recorded. Of all divisions equal lengths need the fewest operations.
        sequences = max(call.tensor(form.lengths, 1).shape[0] - 1, 1)
        if len(q.shape) != len(k.shape) or len(q.shape) not in (3, 4) or q.shape[:-3] not in ((), (1,)):
            raise Unknown
        (total, heads), keys = q.shape[-3:-1], k.shape[-3]
        seen = sequences * pairs(round(total / sequences), round(keys / sequences), causal, last_key)
        rows = heads * total
        count = heads * seen
    elif len(q.shape) == len(k.shape) == len(v.shape) == 4:
        batch = q.shape[0]
        heads, queries = (q.shape[1], q.shape[2]) if form.heads_first else (q.shape[2], q.shape[1])
        keys = k.shape[2] if form.heads_first else k.shape[1]
        rows = batch * heads * queries
        count = batch * heads * pairs(queries, keys, causal, last_key)
    else:
        raise Unknown
    if q.shape[-1] != k.shape[-1]:
        raise Unknown
    return 2 * count * (products[0] * q.shape[-1] + products[1] * v.shape[-1]), rows


def paged(q: int, k: int, v: int) -> Model:
    """Attention over a cache in pages: q [tokens, heads, head_dim] at a position; k and v, new ones or the cache, with
    [..., key_heads, head_dim]. How many keys there are only the step's annotation says.

    A query sees all keys up to its own, the last query all of them. The keys and values of each sequence are read once. Of a cache
    with elements of another type than k and v the bytes are not right.
    """

    def model(call: Call) -> Cost:
        queries, keys, values = call.tensor(q, 3), call.tensor(k), call.tensor(v)
        tokens, heads, width = queries.shape
        if keys.shape[-1] != width or keys.shape[-2:-1] != values.shape[-2:-1]:
            raise Unknown
        lengths = _lengths(call, tokens)
        depth = width + values.shape[-1]
        cache = lengths.keys * keys.shape[-2] * depth * keys.item
        moved = lengths.queries * heads * depth * queries.item + cache
        return Cost(2 * lengths.pairs * heads * depth, moved, precision(queries.dtype), matrix=True, cache=cache)

    return model


def paged_heads(q: int, heads: int) -> Model:
    """Attention over a cache whose layout hides its heads: q [sequences, heads, head_dim], two positions on and one more the cached
    keys and values, and at `heads` how many heads they have."""

    def model(call: Call) -> Cost:
        queries, keys, number = call.tensor(q, 3), call.tensor(q + 1), call.integers(heads)
        tokens, rows, width = queries.shape
        if len(number) != 1 or not 0 < number[0] <= rows:
            raise Unknown
        lengths = _lengths(call, tokens)
        cache = 2 * lengths.keys * number[0] * width * keys.item
        moved = 2 * lengths.queries * rows * width * queries.item + cache
        return Cost(4 * lengths.pairs * rows * width, moved, precision(queries.dtype), matrix=True, cache=cache)

    return model


class Latent(NamedTuple):
    """Where an operator of latent attention (MLA, absorbed) has its inputs: q, whose last dimension is the latent one and the rotary
    one, at one position or (split) the latter at the next; the cache, one row a token, which is both key and value; out: the
    result, else value: the number of the latent dimensions; chosen: which keys each query sees, where it is not all.
    """

    q: int
    cache: int
    split: bool = False
    out: int = -1
    value: int = -1
    chosen: int = -1


def latent(form: Latent) -> Model:
    """Two products: of queries with whole rows of the cache, and of the weights with their latent part. Every row is read once."""

    def model(call: Call) -> Cost:
        q, rows = call.tensor(form.q), call.tensor(form.cache)
        heads, nope = q.shape[-2:]
        width = nope + (call.tensor(form.q + 1).shape[-1] if form.split else 0)
        value = nope if form.split else call.tensor(form.out).shape[-1] if form.out >= 0 else _one(call, form.value)
        tokens = q.size // max(heads * nope, 1)
        # A row of fp8 also has its scales and a part in 16 bits, and is longer.
        if rows.shape[-1] < width or not 0 < value <= width:
            raise Unknown
        chosen = call.maybe(form.chosen) if form.chosen >= 0 else None
        if chosen is not None:
            pairs = chosen.size
            keys = min(pairs, rows.size // rows.shape[-1])
        else:
            lengths = _lengths(call, tokens)
            pairs, keys, tokens = lengths.pairs, lengths.keys, lengths.queries
        cache = keys * rows.shape[-1] * rows.item
        moved = tokens * heads * (width + value) * q.item + cache + (chosen.bytes if chosen is not None else 0)
        return Cost(2 * pairs * heads * (width + value), moved, precision(q.dtype), matrix=True, cache=cache)

    return model


def _one(call: Call, index: int) -> int:
    found = call.integers(index) if index >= 0 else ()
    if len(found) != 1:
        raise Unknown
    return found[0]


def _lengths(call: Call, tokens: int) -> Lengths:
    """The lengths of the step's sequences, by its annotation. tokens: as many queries as the operator has room for."""
    step = read_step(call.around)
    if (
        step is None
        or step.lengths is None
        or step.lengths.queries > tokens
        or step.lengths.squares < step.lengths.queries
    ):
        raise Unknown
    return step.lengths


class Queried(NamedTuple):
    """How many sequences there are, of how many new tokens and of how many keys each."""

    sequences: int
    queries: int
    keys: int


def queried(call: Call) -> Queried:
    """What a forward operator of FORMS is asked. Of packed sequences the mean, as their lengths are data. Raises Unknown."""
    kind, form = FORMS.get(call.name, (backward, Form()))
    if kind is not forward:
        raise Unknown
    q, k = call.tensor(form.q), call.tensor(form.q + 1)
    if form.lengths >= 0 and call.maybe(form.lengths) is not None:
        if min(len(q.shape), len(k.shape)) < 3:
            raise Unknown
        sequences = max(call.tensor(form.lengths, 1).shape[0] - 1, 1)
        return Queried(sequences, *(round(t.shape[-3] / sequences) for t in (q, k)))
    if len(q.shape) != 4 or len(k.shape) != 4:
        raise Unknown
    length = 2 if form.heads_first else 1
    return Queried(q.shape[0], q.shape[length], k.shape[length])


_Kind = Callable[[Form], Model]
# The signatures: ATen's native_functions.yaml (2.6 to 2.15), flash-attn 2 and aiter's mha.py.
FORMS: dict[str, tuple[_Kind, Form]] = {
    "aten::scaled_dot_product_attention": (forward, Form(causal=5, mask=3)),
    "aten::_scaled_dot_product_flash_attention": (forward, Form(causal=4)),
    "aten::_scaled_dot_product_efficient_attention": (forward, Form(causal=6, mask=3)),
    "aten::_scaled_dot_product_cudnn_attention": (forward, Form(causal=6, mask=3)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (forward, Form(causal=4, mask=5)),
    "aten::_flash_attention_forward": (forward, Form(heads_first=False, causal=8, lengths=3, last_key=True)),
    "aten::_efficient_attention_forward": (forward, Form(heads_first=False, causal=9, lengths=4, mask=3)),
    "aten::_cudnn_attention_forward": (forward, Form(causal=10, lengths=4, mask=3)),
    "aten::_scaled_dot_product_flash_attention_backward": (backward, Form(1, causal=11, lengths=6)),
    "aten::_scaled_dot_product_efficient_attention_backward": (backward, Form(1, causal=11, mask=4)),
    "aten::_scaled_dot_product_cudnn_attention_backward": (backward, Form(1, causal=14, lengths=9, mask=8)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (backward, Form(1, causal=7, mask=8)),
    "aten::_flash_attention_backward": (
        backward,
        Form(1, heads_first=False, causal=11, lengths=6, last_key=True),
    ),
    "aten::_efficient_attention_backward": (backward, Form(1, heads_first=False, causal=14, lengths=6, mask=4)),
    "flash_attn::_flash_attn_forward": (forward, Form(heads_first=False, causal=5, last_key=True)),
    "flash_attn::_flash_attn_varlen_forward": (
        forward,
        Form(heads_first=False, causal=9, lengths=3, last_key=True),
    ),
    "flash_attn::_flash_attn_backward": (backward, Form(1, heads_first=False, causal=11, last_key=True)),
    "flash_attn::_flash_attn_varlen_backward": (
        backward,
        Form(1, heads_first=False, causal=15, lengths=9, last_key=True),
    ),
    "aiter::mha_fwd": (forward, Form(heads_first=False, causal=5, last_key=True)),
    "aiter::fmha_v3_fwd": (forward, Form(heads_first=False, causal=5, last_key=True)),
    "aiter::mha_varlen_fwd": (forward, Form(heads_first=False, causal=12, lengths=3, last_key=True)),
    "aiter::mha_bwd": (backward, Form(1, heads_first=False, causal=8, last_key=True)),
    "aiter::fmha_v3_bwd": (backward, Form(1, heads_first=False, causal=8, last_key=True)),
}

# vllm/attention/layer.py (query, key, value, output, ...) and its flash-attn; vLLM's csrc/torch_bindings.cpp and
# csrc/rocm/torch_bindings.cpp; aiter's paged_attention_ragged(out, workspace, query, key_cache, value_cache, ...) as SGLang calls
# it, and mha_batch_prefill of aiter's ops/mha.py.
PAGED: dict[str, Model] = {
    "vllm::unified_attention_with_output": paged(0, 1, 2),
    "vllm::unified_attention": paged(0, 1, 2),
    "_vllm_fa2_C::varlen_fwd": paged(0, 1, 2),
    "_vllm_fa3_C::fwd": paged(0, 1, 2),
    "aiter::mha_batch_prefill": paged(0, 1, 2),
    "sglang_profiler::attention_paged_attention_ragged": paged(2, 3, 4),
    "_C::paged_attention_v1": paged_heads(1, 4),
    "_C::paged_attention_v2": paged_heads(4, 7),
    "_rocm_C::paged_attention": paged_heads(4, 7),
}
# vLLM's csrc/torch_bindings.cpp and vllm/_aiter_ops.py, FlashMLA's csrc/torch_api.cpp as vLLM and SGLang (sgl-kernel/csrc/
# flashmla_extension.cc) register it, SGLang's sgl-kernel/csrc/common_extension.cc.
LATENT: dict[str, Latent] = {
    "_C::sm100_cutlass_mla_decode": Latent(2, 4, split=True),
    "sgl_kernel::cutlass_mla_decode": Latent(1, 3, split=True),
    "vllm::rocm_aiter_mla_decode_fwd": Latent(0, 1, out=2),
    "_flashmla_C::fwd_kvcache_mla": Latent(0, 1, value=2),
    "_flashmla_C::dense_decode_fwd": Latent(0, 1, value=2),
    "sgl_kernel::fwd_kvcache_mla": Latent(0, 1, value=2, chosen=10),
    "sgl_kernel::dense_decode_fwd": Latent(0, 1, value=2),
    "_flashmla_C::sparse_prefill_fwd": Latent(0, 1, value=4, chosen=2),
    "sgl_kernel::sparse_prefill_fwd": Latent(0, 1, value=4, chosen=2),
}
LENGTHS = {*PAGED, *LATENT}  # whose work depends on the lengths of sequences

MODELS: dict[str, Model] = {name: kind(form) for name, (kind, form) in FORMS.items()} | PAGED
MODELS |= {name: latent(form) for name, form in LATENT.items()}


def sage(tensors: int) -> Model:
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


def sage_cast(call: Call) -> Cost:
    """aiter's sage_quant_kernel(q, q_int8, q_scale, k, k_int8, k_scale, v, v_fp8, v_scale, ...): one operation an element"""
    read = [call.tensor(i, 4) for i in (0, 3, 6)]
    if any(source.shape != call.tensor(i).shape for source, i in zip(read, (1, 4, 7), strict=True)):
        raise Unknown
    return Cost(sum(x.size for x in read), sum(call.tensor(i).bytes for i in range(9)), precision(read[0].dtype))


# sageattention/sm80_compile.py, sm89_compile.py and sm90_compile.py of SageAttention at d1a57a5. Of the Triton kernel `sage_fwd` nothing
# recorded says whether its mask is causal: it has no model.
MODELS |= {
    "sageattention::qk_int8_sv_f16_accum_f16_attn": sage(6),
    "sageattention::qk_int8_sv_f16_accum_f32_attn": sage(6),
    "sageattention::qk_int8_sv_f16_accum_f16_attn_inst_buf": sage(6),
    "sageattention::qk_int8_sv_f16_accum_f16_fuse_v_mean_attn": sage(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn": sage(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf": sage(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f16_fuse_v_scale_attn_inst_buf": sage(7),
    "sageattention_sm89::qk_int8_sv_f8_accum_f32_fuse_v_scale_fuse_v_mean_attn": sage(8),
    "sageattention_sm90::qk_int8_sv_f8_accum_f32_attn_inst_buf": sage(6),
    "sageattention_sm90::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf": sage(7),
}
CASTS: dict[str, Model] = {"sage_quant_kernel": sage_cast}
