"""Operators of inference servers, by their real names and signatures (the sources stand beside the models): FLOP, bytes and traffic
of the cache, worked out by hand."""

import pytest
from recorded import T, priced

from rung.analysis.costs import Cost, Unknown, family

FP8, INT8, BYTES, INTS, FLOATS = "c10::Float8_e4m3fn", "signed char", "unsigned char", "int", "float"
BF16 = 15  # c10::ScalarType

# Two sequences that decode, of 100 and 200 tokens; one prompt of 10 tokens behind 20 that were cached.
DECODE = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk300sqsq2sqsk300)"
PROMPT = "step[EXTEND bs=1 toks=10 c_sq=10 c_sk=30 c_sqsq=100 c_sqsk=300]"
PAIRS = 10 * 20 + 10 * 11 // 2  # of the prompt


def test_paged_attention_of_every_kind_reads_the_cache_of_its_sequences():
    q = T((2, 32, 128))
    pages = T((1000, 16, 8, 128))
    expected = Cost(
        4 * 300 * 32 * 128, 2 * 2 * 32 * 128 * 2 + 2 * 300 * 8 * 128 * 2, "bf16", True, 2 * 300 * 8 * 128 * 2
    )
    # vLLM's flash-attn 3: fwd(q, k, v, k_new, v_new, q_v, out, cu_seqlens_q, ...)
    assert priced("_vllm_fa3_C::fwd", q, pages, pages, None, around=DECODE) == expected
    assert (
        priced("vllm::unified_attention_with_output", q, T((2, 8, 128)), T((2, 8, 128)), q, around=DECODE) == expected
    )
    # paged_attention_v1(out, query, key_cache [blocks, heads, d / x, block, x], value_cache, num_kv_heads, ...)
    hidden = T((1000, 8, 16, 16, 8)), T((1000, 8, 128, 16))
    assert priced("_C::paged_attention_v1", q, q, *hidden, 8, 0.1, around=DECODE) == expected
    more = [T((2, 32, 1), FLOATS)] * 2, T((2, 32, 1, 128))
    for name in ("_C::paged_attention_v2", "_rocm_C::paged_attention"):
        assert priced(name, q, *more[0], more[1], q, *hidden, 8, 0.1, around=DECODE) == expected


def test_a_prompt_behind_cached_tokens_has_the_pairs_that_its_mask_leaves():
    # aiter::mha_batch_prefill as recorded by SGLang on an MI300X (Qwen3 8B), here with other numbers
    q, cache = T((10, 32, 128)), T((835874, 8, 128))
    found = priced(
        "aiter::mha_batch_prefill", q, cache, cache, T((2,), INTS), T((2,), INTS), T((30,), INTS), around=PROMPT
    )
    assert found.flops == 4 * PAIRS * 32 * 128
    assert found.cache == 2 * 30 * 8 * 128 * 2


def test_no_lengths_no_paged_attention():
    q, cache = T((2, 32, 128)), T((1000, 16, 8, 128))
    for around in (
        "",
        "step[DECODE bs=2]",
        DECODE.replace("sq2sk", "sq3sk"),
    ):  # the last: more queries than there is room for
        with pytest.raises(Unknown):
            priced("_vllm_fa3_C::fwd", q, cache, cache, around=around)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        # sm100_cutlass_mla_decode(out, lse, q_nope, q_pe, kv_c_and_k_pe_cache, seq_lens, ...); SGLang's without lse
        ("_C::sm100_cutlass_mla_decode", (T((2, 128, 512)), T((2, 128), FLOATS), T((2, 128, 512)), T((2, 128, 64)), T((99, 64, 576)))),
        ("sgl_kernel::cutlass_mla_decode", (T((2, 128, 512)), T((2, 128, 512)), T((2, 128, 64)), T((99, 64, 576)))),
        # rocm_aiter_mla_decode_fwd(q, kv_buffer, o, ...)
        ("vllm::rocm_aiter_mla_decode_fwd", (T((2, 128, 576)), T((6336, 1, 1, 576)), T((2, 128, 512)))),
        # fwd_kvcache_mla(q [batch, 1, heads, 576], kcache, head_size_v, ...)
        ("_flashmla_C::fwd_kvcache_mla", (T((2, 1, 128, 576)), T((99, 64, 1, 576)), 512, T((2,), INTS))),
        ("sgl_kernel::dense_decode_fwd", (T((2, 1, 128, 576)), T((99, 64, 1, 576)), 512, T((2,), INTS))),
    ],
)  # fmt: skip
def test_latent_attention_reads_one_row_a_token_for_keys_and_values(name, inputs):
    found = priced(name, *inputs, around=DECODE)
    assert found.flops == 2 * 300 * 128 * (576 + 512)
    assert found.cache == 300 * 576 * 2
    assert found.bytes == 2 * 128 * (576 + 512) * 2 + 300 * 576 * 2


def test_sparse_attention_works_on_the_keys_that_were_chosen():
    # sparse_prefill_fwd(q [tokens, heads, 576], kv [rows, 1, 576], indices [tokens, 1, 2048], sm_scale, d_v)
    q, rows, chosen = T((64, 128, 576)), T((30_000, 1, 576)), T((64, 1, 2048), INTS)
    for name in ("_flashmla_C::sparse_prefill_fwd", "sgl_kernel::sparse_prefill_fwd"):
        found = priced(name, q, rows, chosen, 0.1, 512)
        assert found.flops == 2 * 64 * 2048 * 128 * (576 + 512)
        assert found.cache == 30_000 * 576 * 2  # 131,072 choices of 30,000 rows


@pytest.mark.parametrize(
    ("name", "inputs", "kind", "extra"),
    [
        # 32 x 4096 by 4096 x 6144. extra: bytes of scales and bias
        ("vllm::rocm_aiter_gemm_a8w8_blockscale", (T((32, 4096), FP8), T((6144, 4096), FP8), T((32, 32), FLOATS), T((48, 32), FLOATS)), "fp8", 4 * (32 * 32 + 48 * 32)),
        ("vllm::w8a8_block_fp8_matmul_deepgemm", (T((32, 4096), FP8), T((6144, 4096), FP8), T((32, 32), FLOATS), T((48, 32), FLOATS)), "fp8", 4 * (32 * 32 + 48 * 32)),
        ("aiter::gemm_a8w8", (T((32, 4096), INT8), T((6144, 4096), INT8), T((32, 1), FLOATS), T((1, 6144), FLOATS)), "int8", 4 * (32 + 6144)),
        ("sgl_kernel::fp8_scaled_mm", (T((32, 4096), FP8), T((4096, 6144), FP8), T((32,), FLOATS), T((6144,), FLOATS), BF16, T((6144,))), "fp8", 4 * (32 + 6144) + 2 * 6144),
        ("_C::cutlass_scaled_mm", (T((32, 6144)), T((32, 4096), FP8), T((4096, 6144), FP8), T((1,), FLOATS), T((1,), FLOATS), None), "fp8", 8),
    ],
)  # fmt: skip
def test_products_of_8_bits(name, inputs, kind, extra):
    found = priced(name, *inputs)
    assert (found.flops, found.precision, found.matrix) == (2 * 32 * 4096 * 6144, kind, True)
    assert found.bytes == 32 * 4096 + 4096 * 6144 + 2 * 32 * 6144 + extra
    assert family(name) == "gemm"


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        # cutlass_scaled_fp4_mm(out, a [m, k/2], b [n, k/2], block_scale_a, block_scale_b, alpha); gemm_a4w4(A, B, A_scale, B_scale, ...)
        ("_C::cutlass_scaled_fp4_mm", (T((32, 6144)), T((32, 2048), BYTES), T((6144, 2048), BYTES), T((32, 256), FP8), T((6144, 256), FP8), T((1,), FLOATS))),
        ("aiter::gemm_a4w4", (T((32, 2048), "c10::Float4_e2m1fn_x2"), T((6144, 2048), "c10::Float4_e2m1fn_x2"), T((32, 256), FP8), T((6144, 256), FP8))),
    ],
)  # fmt: skip
def test_products_of_fp4_have_two_elements_in_a_byte(name, inputs):
    found = priced(name, *inputs)
    assert (found.flops, found.precision) == (2 * 32 * 4096 * 6144, "fp4")
    assert found.bytes == (32 + 6144) * 2048 + (32 + 6144) * 256 + 2 * 32 * 6144 + (4 if "cutlass" in name else 0)


@pytest.mark.parametrize(
    ("name", "inputs", "extra"),
    [
        # awq_gemm(in_feats, kernel [k, n/8], scales [k/128, n], zeros [k/128, n/8], split_k)
        ("_C::awq_gemm", (T((32, 4096)), T((4096, 768), INTS), T((32, 6144)), T((32, 768), INTS), 8), 32 * 6144 * 2 + 32 * 768 * 4),
        # gptq_gemm(a, b_q_weight [k/8, n], qzeros, scales, g_idx, ...)
        ("_C::gptq_gemm", (T((32, 4096)), T((512, 6144), INTS), T((32, 768), INTS), T((32, 6144)), T((4096,), INTS), True, False, 4), 32 * 6144 * 2 + 32 * 768 * 4),
        # marlin_gemm(a, c, b_q_weight [k/16, 2 n], b_bias, b_scales, a_scales, global_scale, zeros, g_idx, perm, workspace, type, m, n, k, ...)
        ("_C::marlin_gemm", (T((32, 4096)), None, T((256, 12288), INTS), None, T((32, 6144)), None, None, None, None, None, T((528,), INTS), 1125899906909960, 32, 6144, 4096, True), 32 * 6144 * 2),
        # gptq_marlin_gemm(a, c, b_q_weight, b_scales, global_scale, zeros, g_idx, perm, workspace, type, m, n, k, ...)
        ("sgl_kernel::gptq_marlin_gemm", (T((32, 4096)), None, T((256, 12288), INTS), T((32, 6144)), None, None, None, None, T((528,), INTS), 1125899906909960, 32, 6144, 4096, True), 32 * 6144 * 2),
        # machete_mm(A, B [k/8, n], b_type, out_type, group_scales, ...)
        ("_C::machete_mm", (T((32, 4096)), T((512, 6144), INTS), 1125899906909960, None, T((32, 6144))), 32 * 6144 * 2),
    ],
)  # fmt: skip
def test_products_with_weights_of_4_bits_run_at_the_rate_of_the_activations(name, inputs, extra):
    found = priced(name, *inputs)
    assert (found.flops, found.precision) == (2 * 32 * 4096 * 6144, "bf16")
    assert found.bytes == 2 * 32 * 4096 + 4096 * 6144 // 2 + 2 * 32 * 6144 + extra


def test_deepgemms_operators():
    # As SGLang records it on a B200: (A, scales, B, scales, result); vLLM's fp8_gemm_nt_op has a flag behind it.
    a, b, out = T((8, 16384), FP8), T((6144, 16384), FP8), T((8, 6144))
    call = (a, T((8, 32), "int"), b, T((6144, 32), "int"), out)
    for name, found in (
        ("sglang::deep_gemm_fp8_fp8_bf16_nt", priced("sglang::deep_gemm_fp8_fp8_bf16_nt", *call)),
        ("vllm::fp8_gemm_nt_op", priced("vllm::fp8_gemm_nt_op", *call, True)),
    ):
        assert (found.flops, found.precision, family(name)) == (2 * 8 * 16384 * 6144, "fp8", "gemm")
        assert found.bytes == 8 * 16384 + 6144 * 16384 + 4 * 32 * (8 + 6144) + 2 * 8 * 6144
    with pytest.raises(Unknown):
        priced("vllm::fp8_gemm_nt_op", *call[:4], T((8, 6145)), True)
    # vLLM's flashinfer_fp8_blockscale_gemm takes 16 bits and casts them; its product is one of fp8.
    found = priced("vllm::flashinfer_fp8_blockscale_gemm", T((8, 16384)), b, T((48, 128), FLOATS), 128, True)
    assert (found.flops, found.precision) == (2 * 8 * 16384 * 6144, "fp8")


def test_fused_experts_of_aiter_and_of_flashinfer():
    # 64 tokens of 8 of 32 experts, which 4096 x 1024: (hidden, w1 [32, 2048, 4096], w2 [32, 4096, 1024], weights, ids [64, 8])
    x, up, down = T((64, 4096)), T((32, 2048, 4096), FP8), T((32, 4096, 1024), FP8)
    flops, weights = 2 * 64 * 8 * 4096 * 3 * 1024, 32 * 3 * 4096 * 1024
    found = priced("vllm::rocm_aiter_fused_moe", x, up, down, T((64, 8), FLOATS), T((64, 8), INTS))
    assert (found.flops, found.precision) == (flops, "fp8")
    assert found.bytes == 2 * 2 * 64 * 4096 + 4 * 64 * 8 + weights
    # flashinfer_fused_moe_bf16(logits, bias, hidden, gemm1, gemm2, experts, chosen, groups, .., width, offset, local experts, ...), its
    # weights in blocks; this rank has half of 64 experts, and so half of the choices.
    blocks = T((32, 32, 2048, 128)), T((32, 8, 4096, 128))
    found = priced("vllm::flashinfer_fused_moe_bf16", T((64, 64)), None, x, *blocks, 64, 8, None, None, 1024, 32, 32, 1)
    assert found.flops == flops // 2
    assert found.bytes == 2 * 2 * 64 * 4096 + 2 * 64 * 64 + 2 * weights


def test_grouped_products_of_experts():
    # 512 pairs by 32 experts of 4096 x 2048
    out, weights = T((512, 2048)), 32 * 4096 * 2048
    flops = 2 * 512 * 4096 * 2048
    found = priced("_C::cutlass_moe_mm", out, T((512, 4096), FP8), T((32, 4096, 2048), FP8), T((512, 1), FLOATS))
    assert (found.flops, found.bytes, found.precision) == (flops, 512 * 4096 + 2 * 512 * 2048 + weights, "fp8")
    found = priced("sgl_kernel::cutlass_fp4_group_mm", out, T((512, 2048), BYTES), T((32, 2048, 2048), BYTES))
    assert (found.flops, found.bytes, found.precision) == (flops, 512 * 2048 + 2 * 512 * 2048 + weights // 2, "fp4")
    found = priced("sgl_kernel::cutlass_w4a8_moe_mm", out, T((512, 4096), FP8), T((32, 2048, 2048), INT8))
    assert (found.flops, found.bytes) == (flops, 512 * 4096 + 2 * 512 * 2048 + weights // 2)
    found = priced(
        "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
        out,
        *[T((32,), "long int")] * 5,
        T((512, 4096), FP8),
        T((32, 4096, 2048), FP8),
    )
    assert found.flops == flops
    # moe_wna16_gemm(input [64, 4096], output [64, 8, 2048], qweight [32, 2048, 2048] two in a byte, scales, ...)
    found = priced(
        "_moe_C::moe_wna16_gemm", T((64, 4096)), T((64, 8, 2048)), T((32, 2048, 2048), BYTES), T((32, 2048, 32)), None
    )
    assert (found.flops, found.precision) == (flops, "bf16")
    assert found.bytes == 2 * 64 * 4096 + 2 * 512 * 2048 + weights // 2 + 2 * 32 * 2048 * 32


def test_marlins_product_of_experts():
    # moe_wna16_marlin_gemm of vLLM 0.11 (csrc/moe/torch_bindings.cpp) and of SGLang (sgl-kernel/csrc/common_extension.cc): 64 rows by
    # 8 of 32 experts of 4096 x 2048 in 4 bits, 16 x 16 tiles of which are a row of 32-bit words
    words, scales, work = T((32, 4096 // 16, 2048 * 2), "int"), T((32, 32, 2048)), T((528,), "int")
    ids = T((1024,), "int"), T((64,), "int"), T((1,), "int"), T((64, 8), "float")
    out = T((512, 2048))
    sizes = (64, 2048, 4096, True, False, True, False)
    vllm = (
        T((64, 4096)),
        out,
        words,
        None,
        scales,
        None,
        None,
        None,
        None,
        None,
        work,
        *ids,
        16,
        8,
        False,
        1125899906909960,
        *sizes,
    )
    sglang = (
        T((64, 4096)),
        out,
        words,
        scales,
        None,
        None,
        None,
        work,
        *ids,
        16,
        8,
        False,
        False,
        1125899906909960,
        *sizes,
    )
    for name, call in (("_moe_C::moe_wna16_marlin_gemm", vllm), ("sgl_kernel::moe_wna16_marlin_gemm", sglang)):
        found = priced(name, *call)
        assert (found.flops, found.precision) == (2 * 512 * 4096 * 2048, "bf16")
        assert found.bytes == 2 * 64 * 4096 + 2 * 512 * 2048 + 32 * 4096 * 2048 // 2 + 2 * 32 * 32 * 2048
    with pytest.raises(Unknown):
        priced("_moe_C::moe_wna16_marlin_gemm", *vllm[:2], T((32, 16, 64), "int"), *vllm[3:])


def test_sageattention_as_its_operators_record_it():
    # 2 sequences of 1000 tokens and 24 heads of 128; sm90's values are padded to 1024 tokens: (q, k, v, out, q_scale, k_scale, v_scale, ...)
    nhd, hnd = (2, 1000, 24, 128), (2, 24, 1000, 128)
    scales = T((2, 24, 256), FLOATS), T((2, 24, 16), FLOATS)
    name = "sageattention_sm90::qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf"
    values, of_values = T((2, 24, 128, 1024), FP8), T((2, 24, 128), FLOATS)
    square, tensors = 1000 * 1000, 2 * 2 * 24 * 1000 * 128 + 2 * 2 * 24 * 1000 * 128
    more = 2 * 24 * 128 * 1024 + 4 * 2 * 24 * (256 + 16 + 128)
    for layout, shape in ((0, nhd), (1, hnd)):
        q = T(shape, INT8)
        found = priced(name, q, q, values, T(shape), *scales, of_values, layout, 0, 3, 0.1, 0)
        assert (found.flops, found.precision, family(name)) == (4 * 2 * 24 * square * 128, "int8", "attention")
        assert found.bytes == tensors + more
        causal = priced(name, q, q, values, T(shape), *scales, of_values, layout, 1, 3, 0.1, 0)
        assert causal.flops == 4 * 2 * 24 * 1000 * 1001 // 2 * 128
    name = "sageattention::qk_int8_sv_f16_accum_f32_attn"
    q = T(nhd, INT8)
    found = priced(name, q, q, T(nhd, "c10::Half"), T(nhd), *scales, 0, 0, 2, 0.1, 1)
    assert found.flops == 4 * 2 * 24 * square * 128
    with pytest.raises(Unknown):
        priced(name, q, q, T(nhd, "c10::Half"), T(nhd), *scales, None, 0, 2, 0.1, 1)


def test_sageattentions_cast_as_flux_records_it_on_an_mi300x():
    # tests/traces/inference/xdit_flux.1_aiter_sage/capture_traces of TraceLens; the kernel of attention itself does not say its mask.
    x, narrow = T((1, 24, 768, 128)), T((1, 24, 768, 128), INT8)
    call = (
        x,
        narrow,
        T((1, 24, 3), FLOATS),
        x,
        narrow,
        T((1, 24, 6), FLOATS),
        x,
        T((1, 24, 768, 128), FP8),
        T((1, 24, 128), FLOATS),
    )
    found = priced("sage_quant_kernel_0", *call, 2359296, 128)
    assert found.flops == 3 * 24 * 768 * 128
    assert found.bytes == 3 * 3 * 24 * 768 * 128 + 4 * 24 * (3 + 6 + 128)
    with pytest.raises(Unknown):
        priced("sage_fwd_1", *call)


def test_few_choices_read_few_experts():
    few = priced("_C::cutlass_moe_mm", T((4, 2048)), T((4, 4096), FP8), T((32, 4096, 2048), FP8))
    assert few.bytes == 4 * 4096 + 2 * 4 * 2048 + 4 * 4096 * 2048


def test_sampling_and_routing_go_over_their_scores_once():
    probabilities = T((32, 151_936), FLOATS)
    found = priced(
        "sgl_kernel::top_k_top_p_sampling_from_probs", probabilities, T((32,), INTS), None, T((32,), INTS), 0.0
    )
    assert (found.flops, found.bytes) == (32 * 151_936, 4 * 32 * 151_936 + 2 * 4 * 32)
    masks = [T((32, 151_936), "bool")] * 2
    found = priced("_C::apply_repetition_penalties_", probabilities, *masks, T((32,), FLOATS))
    assert found.bytes == 2 * 4 * 32 * 151_936 + 2 * 32 * 151_936 + 4 * 32
    chosen = [T((64, 8), FLOATS), T((64, 8), INTS), T((64, 8), INTS)]
    found = priced("_moe_C::topk_softmax", *chosen, T((64, 128)))
    assert (found.flops, found.bytes) == (5 * 64 * 128, 3 * 4 * 64 * 8 + 2 * 64 * 128)
    assert family("_moe_C::topk_softmax") == "selection"


def test_casts_to_8_bits_and_rows_of_a_latent_cache():
    # static_scaled_fp8_quant as recorded on a B200 (TraceLens 171dd747, tests/traces/b200/eager_trace.json.gz)
    found = priced("_C::static_scaled_fp8_quant", T((888, 512), FP8), T((888, 512)), T((), FLOATS))
    assert (found.flops, found.bytes) == (888 * 512, 3 * 888 * 512)
    found = priced(
        "sgl_kernel::sgl_per_token_group_quant_fp8", T((32, 4096)), T((32, 4096), FP8), T((32, 32), FLOATS), 128
    )
    assert found.bytes == 3 * 32 * 4096 + 4 * 32 * 32
    found = priced(
        "_C_cache_ops::concat_and_cache_mla", T((32, 512)), T((32, 64)), T((99, 64, 576)), T((32,), "long int")
    )
    assert (found.bytes, found.cache) == (2 * 2 * 32 * 576 + 8 * 32, 2 * 32 * 576)
