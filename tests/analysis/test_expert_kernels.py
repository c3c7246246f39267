"""Experts whose weights no operator's input tells: their sizes from the names and grids of real kernels, as far as these prove them."""

import json

import pytest
from recorded import T, priced

from rung.analysis.around import expert_kernels
from rung.analysis.costs import Unknown, tells_of_experts
from rung.analysis.roofline import roofline
from rung.trace import read

# FlashInfer's trtllm-gen kernels in vLLM's gpt-oss-120b on a B200 (tests/traces/b200/eager_trace.json.gz of TraceLens).
UP = (
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_"
    "tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f"
)
DOWN = (
    "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_"
    "tmaOpt_clmp_dynBatch_sm100f"
)


def moe(kernels, tokens, width, experts, chosen=(), alone=True, name="vllm::moe_forward"):
    said = json.dumps({"chosen": list(chosen), "kernels": kernels, "alone": alone})
    return priced(name, T((tokens, width)), T((tokens, experts)), None, around=said)


def test_flashinfers_grids_tell_the_experts_of_a_token_and_their_width():
    # 888 tokens, 128 experts: 342 = 128 + (888 x 4 - 128) / 16 tiles of tokens; 8 and 24 tiles of 128 rows of weights.
    for alone in (True, False):
        for name in ("vllm::moe_forward", "vllm::moe_forward_shared"):
            found = moe([(UP, [8, 342, 1]), (DOWN, [24, 342, 1])], 888, 3072, 128, alone=alone, name=name)
            assert found.flops == 2 * 3552 * 3072 * 3 * 512
            assert found.bytes == 2 * 2 * 888 * 3072 + 2 * 888 * 128 + 128 * 3 * 512 * 3072 * 17 // 32
            assert (found.precision, found.matrix, found.inferred) == ("fp8", True, True)


@pytest.mark.parametrize(
    ("up", "down", "tokens", "experts"),
    [
        ([8, 341, 1], [24, 341, 1], 888, 128),  # no number of experts a token makes so many tiles
        ([8, 342, 1], [24, 341, 1], 888, 128),
        ([8, 342, 1], [25, 342, 1], 888, 128),  # 25 tiles are more than 3072
        ([7, 342, 1], [24, 342, 1], 888, 128),  # no multiple of 2 x 128 columns has 7 tiles
        ([8, 20, 1], [24, 20, 1], 8, 16),  # 2 tokens' experts more or less make no tile of 16
    ],
)
def test_a_grid_that_proves_nothing_gives_no_work(up, down, tokens, experts):
    with pytest.raises(Unknown):
        moe([(UP, up), (DOWN, down)], tokens, 3072, experts)


def test_few_tokens_leave_open_where_their_experts_are_unless_there_is_one_rank():
    # 4 tokens by 4 experts: 16 tiles, whether all 128 experts are here or 16.
    kernels = [(UP, [8, 16, 1]), (DOWN, [24, 16, 1])]
    assert moe(kernels, 4, 3072, 128).flops == 2 * 16 * 3072 * 3 * 512
    with pytest.raises(Unknown):
        moe(kernels, 4, 3072, 128, alone=False)
    # 1000 tokens: 265 = 16 + (1000 x 4 - 16) / 16 tiles: only with an eighth of the experts, which gets an eighth of the choices.
    kernels = [(UP, [8, 265, 1]), (DOWN, [24, 265, 1])]
    found = moe(kernels, 1000, 3072, 128, alone=False)
    assert found.flops == 2 * 1000 * 4 // 8 * 3072 * 3 * 512
    assert found.bytes == 2 * 2 * 1000 * 3072 + 2 * 1000 * 128 + 16 * 3 * 512 * 3072 * 17 // 32


@pytest.mark.parametrize(
    ("up", "down", "bits", "kind", "gated"),
    [
        # Names of SGLang's and TensorRT-LLM's profiles on B200.
        (
            "bmm_E2m1_E2m1E2m1_Fp32_Ab16_Bb16_Cb16_t128x8x512_s5_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schedS_biasFp32M_bN_clmp_swiGlu_dynB_sm100f",
            "bmm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512_s5_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schPd2x1x2x3_biasFp32M_bN_rgTma_clmp_dynB_sm100f",
            4.5,
            "fp4",
            2,
        ),
        (
            "bmm_Bfloat16_MxInt4Bfloat16_castBfloat16_Fp32_Ab32_t128x8x256_s3_et128x8_m256x8x16_c1x1x1_rM_BN_transOut_schPd2x1x2x3_biasBfloat16Mn_bN_tma_tmaSf_rgTma_clmp_swiGlu_dynB_sm100f",
            "bmm_Bfloat16_MxInt4Bfloat16_castBfloat16_Fp32_Ab32_t128x8x256_s3_et128x8_m256x8x16_c1x1x1_rM_BN_transOut_schPd2x1x2x3_bN_rgTma_clmp_dynB_sm100f",
            4.5,
            "bf16",
            2,
        ),
        (
            "bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s5_et128x8_m256x8x16_c1x1x1_rM_BN_transOut_schPd2x1x2x3_bN_tma_tmaSf_rgTma_clmp_relu2_dynB_sm100f",
            "bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128_s5_et128x8_m256x8x16_c1x1x1_rM_BN_transOut_schPd2x1x2x3_bN_rgTma_clmp_dynB_sm100f",
            16,
            "bf16",
            1,
        ),
    ],
)
def test_every_format_of_trtllm_gen(up, down, bits, kind, gated):
    # 2 tokens by 8 experts of 64: 16 tiles; 1024 columns in 8 tiles of 128 rows, gated or not.
    found = moe([(up, [8, 16, 1]), (down, [32, 16, 1])], 2, 4096, 64)
    inner = 1024 // gated
    assert found.flops == 2 * 16 * 4096 * (1 + gated) * inner
    assert found.bytes == 2 * 2 * 2 * 4096 + 2 * 2 * 64 + 16 * (1 + gated) * inner * 4096 * bits / 8
    assert found.precision == kind


def test_a_gate_of_its_own_behind_deepseeks_scales():
    names = (
        "bmm_Bfloat16_E4m3E4m3_Fp32_t128x32x128_s5_et64x32_m64x32x32_cga1x1x1_16dp256b_rM_BN_transOut_schPd2x1x2x3_bN_rgTma_clmp_dynB_sm100f",
        "void moe::dev::activation::activationDeepSeekKernel<moe::dev::activation::KernelParams<cutlass::float_e4m3_t, 4, false> >(...)",
    )
    kernels = [(names[0], [8, 12, 1]), (names[1], [1, 1, 1]), (names[0], [32, 12, 1])]
    assert moe(kernels, 12, 4096, 64).flops == 2 * 12 * 4096 * 3 * 512
    assert all(map(tells_of_experts, names))


def test_triton_kernels_tiles_bound_the_width():
    def triton(up, down, chosen=4, tokens=32):
        kernels = [["_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", up], ["_topk_forward", [1, 1, 1]],
                   ["_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", down]]  # fmt: skip
        return moe(kernels, tokens, 3072, 32, [chosen])

    # 128 pairs on 32 experts: 38 tiles of 16 rows; 46 tiles of 128 columns: 5,761 to 5,888, of which 5,824 = 2 x 32 x 91 is the least.
    found = triton([38 * 46, 1, 1], [38 * 24, 1, 1])
    assert found.flops == 2 * 128 * 3072 * (5824 + 2912)
    assert found.bytes == 2 * 2 * 32 * 3072 + 2 * 32 * 32 + 32 * 3072 * (5824 + 2912) * 17 // 32
    assert triton([2 * 46, 1, 1], [2 * 24, 1, 1], chosen=2, tokens=1).flops == 2 * 2 * 3072 * (5824 + 2912)
    for up, down in (([38 * 46 + 1, 1, 1], [38 * 24, 1, 1]), ([38 * 46, 1, 1], [38 * 25, 1, 1])):
        with pytest.raises(Unknown):
            triton(up, down)
    with pytest.raises(Unknown):
        priced("vllm::moe_forward", T((32, 3072)), T((32, 32)), None, None)


# DeepGEMM's: MiniMax-M3 in SGLang on B200, DeepSeek-V3 in SGLang on H100 with 4 of 256 experts a rank, and the same spelled as on H100 since.
BLACKWELL = (
    "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 32u, 32u, 0u, {}u, {}u, 128u, 128u, 128u, {}u, "
    "128u, 128u, 128u, 8u, 128u, 128u, 2u, true, 148u, true, (deep_gemm::GemmType)2, false, cutlass::float_e4m3_t, cutlass::float_e4m3_t, "
    "cutlass::bfloat16_t, deep_gemm::epilogue::transform::EpilogueIdentity>(int*, unsigned int, unsigned int, unsigned int, CUtensorMap_st)"
)
FIRST = (
    "void deep_gemm::fp8_gemm_kernel<{}u, {}u, 256u, 128u, 128u, 0u, 128u, {}u, 3u, 128u, 128u, 1u, true, (deep_gemm::GemmType)2>"
    "(__nv_bfloat16*, float*, int*, unsigned int, CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, CUtensorMap_st)"
)
HOPPER = (
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, {}u, {}u, {}u, 256u, 128u, 128u, 128u, 128u, 128u, 3u, 128u, 256u, 2u, "
    "true, 132u, (deep_gemm::GemmType)1, deep_gemm::epilogue::transform::EpilogueIdentity>(float*, int*, unsigned int, unsigned int)"
)


@pytest.mark.parametrize("name", [BLACKWELL, FIRST, HOPPER, HOPPER.replace("0u, {}u, {}u, {}u", "(unsigned int)0, (unsigned int){}, (unsigned int){}, (unsigned int){}")])  # fmt: skip
def test_deepgemms_names_have_the_sizes(name):
    def deep(up=(768, 6144, 128), down=(6144, 384, 128), chosen=(4,)):
        return moe([(name.format(*up), [0, 0, 0]), (name.format(*down), [0, 0, 0])], 100, 6144, 128, chosen)

    found = deep()
    assert found.flops == 2 * 400 * 6144 * 3 * 384
    assert found.bytes == 2 * 2 * 100 * 6144 + 2 * 100 * 128 + 128 * 3 * 384 * 6144
    assert (found.precision, found.inferred) == ("fp8", True)
    assert deep(up=(384, 6144, 128)).flops == 2 * 400 * 6144 * 2 * 384  # without a gate
    for changed in (
        {"chosen": ()},
        {"chosen": (4, 2)},
        {"up": (768, 6144, 16), "down": (6144, 384, 16)},
        {"down": (6144, 385, 128)},
    ):
        with pytest.raises(Unknown):
            deep(**changed)


def test_a_product_of_no_experts_is_not_taken_for_one():
    plain = HOPPER.format(4096, 1024, 1).replace("GemmType)1", "GemmType)0")  # as recorded in vLLM on H200
    assert not tells_of_experts(plain)
    assert not tells_of_experts("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT")


def event(name, ts, dur, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur, "args": args}


def experts(start, correlation, tokens, grids, on_launch):
    """An operator with two launches and their kernels: grids at the kernels, as on CUDA, or at the launches, as on ROCm."""
    shapes = {"Input Dims": [[tokens, 3072], [tokens, 128], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
    yield event("vllm::moe_forward", start, 50, **shapes)
    for number, (name, grid) in enumerate(zip((UP, DOWN), grids, strict=True)):
        ids = {"correlation": correlation + number}
        said = {"kernel": name, "grid": grid} if on_launch else {}
        yield event("cuLaunchKernelEx", start + 5 + 10 * number, 2, "cuda_driver", **ids, **said)
        place = {"pid": 0, "tid": 7}
        said = {} if on_launch else {"grid": grid}
        yield event(name, start + 100 + 10 * number, 9, "kernel", device=0, stream=7, **ids, **said) | place


@pytest.mark.parametrize("on_launch", [False, True])
def test_grids_are_read_where_they_are_recorded(tmp_path, on_launch):
    events = [
        *experts(1000, 1, 888, ([8, 342, 1], [24, 342, 1]), on_launch),
        *experts(2000, 11, 444, ([8, 231, 1], [24, 231, 1]), on_launch),
        *experts(3000, 21, 444, ([8, 230, 1], [24, "?", 1]), on_launch),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 3, "world_size": 8}}))
    trace = read(path)
    assert trace.grids["grid"].to_list() == [
        "[8, 342, 1]",
        "[24, 342, 1]",
        "[8, 231, 1]",
        "[24, 231, 1]",
        "[8, 230, 1]",
    ]
    rows = roofline(trace)
    found = rows.filter(rows["reason"].is_null()).sort("work_flops")
    assert found["work_flops"].to_list() == [2 * n * 4 * 3072 * 3 * 512 for n in (444, 888)]
    assert found["inferred"].all()
    assert rows.filter(rows["reason"].is_not_null())["gpu_events"].to_list() == [2]
    assert len(expert_kernels(trace)) == 3


def test_grids_are_kept_with_the_other_tables(tmp_path, monkeypatch):
    from rung.trace import cache, write_chrome

    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": list(experts(1000, 1, 888, ([8, 342, 1], [24, 342, 1]), False))}))
    trace = read(path)
    write_chrome.write(trace, tmp_path / "again.json")
    assert read(tmp_path / "again.json").grids.equals(trace.grids)
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    assert cache.save("entry", trace) == ""
    assert cache.load("entry").grids.equals(trace.grids)
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        text = json.loads(path.read_text()) | {"distributedInfo": {"rank": rank, "world_size": 2}}
        (folder / f"rank{rank}.json").write_text(json.dumps(text))
    both = read(folder)
    assert both.grids.sort("rank", "correlation")["rank"].to_list() == [0, 0, 1, 1]
    assert roofline(both).filter(family="moe")["count"].to_list() == [2]
