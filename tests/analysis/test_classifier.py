"""One classifier for ROCm and CUDA names, held by a table of kernel names that was checked by hand.

The names are as profilers record them (long ones cut where nothing follows that matters), of every vendor library that
a PyTorch program meets; each stands under what it really computes, told by its library's sources or by the operator
that launches it.
"""

import re

import pytest

from rung.analysis import classifier
from rung.analysis.classifier import CATEGORIES, _families, classify_op, copy_direction, kernel_kind
from rung.analysis.collective_calls import _KINDS
from rung.analysis.communicators import communicating_kernel
from rung.errors import InputError
from rung.toml import shipped

KERNELS = {
    # Tensile and hipBLASLt, rocBLAS, Composable Kernel; cuBLAS, CUTLASS; Triton and Inductor templates
    ("gemm", ""): [
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
        "Custom_Cijk_Alik_Bljk_F8BS_BH_Bias_AS_SAB_SCD_SAV_UserArgs_MT256x256x128_MI16x16x1",
        "Cijk_Ailk_Bjlk_SB_MT64x64x16_SN_PostGSU8_VW4",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>",
        "rocblas_gemvn_kernel<64, 16, float>",
        "gemv_rows",
        "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_13GridwiseGemmEEE",
        "void ck::kernel_batched_gemm_xdlops_v2r3<ck::GridwiseGemm_k0mk1_k0nk1_mn_xdlops_v2r3>",
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)",
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_TNN",
        "void internal::gemvx::kernel<int, int, __nv_bfloat16, cublasGemvParamsEx>",
        "ampere_sgemm_128x64_nn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, float>",
        "void epilogue::impl::globalKernel<float, float, float, true, true>",
        "triton_tem_fused_addmm_3",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 4>",
        "_w8a8_block_fp8_matmul",
    ],
    ("gemm", "experts"): [
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        "fused_moe_kernel",
        "_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E",
        "_ZN2ck18kernel_moe_gemm_2lE",
        "_grouped_gemm_kernel",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f",
        "bmm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x8x512_s5_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schPd2x1x2x3_biasFp32M_bN_rgTma_clmp_dynB_sm100f",
        "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l, 2814749767106568l, 128, 4, 8, 4, false, 4, 2, false>",
        "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 160u, 128u, 0u, 64u, 9u, 4u, 128u, 128u, 1u, true, (deep_gemm::GemmType)1>",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape>>",
    ],
    # AOTriton, CK, aiter, FlashAttention 2 and 3, memory-efficient, cuDNN, FlexAttention
    ("attention", "forward"): [
        "attn_fwd",
        "_ZN5aiter26fmha_fwd_hd128_bf16_causalE",
        "_ZN5aiter40mla_pfl_qh192_vh128_m32x8_n128x1_causal1E",
        "mla_pfl_bf16_a16w16_causal_subQ128_mqa128",
        "_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_20",
        "void ck_tile::kentry<1, ck_tile::FmhaBatchPrefillWithPagedKVCacheKernel<>>",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3",
        "kernel_unified_attention_2d",
        "sage_fwd",
        "triton_tem_fused_flex_attention_0",
    ],
    ("attention", "backward"): [
        "bwd_kernel_dk_dv",
        "bwd_kernel_dq",
        "bwd_preprocess",
        "_ZN7ck_tile6kentryILi1ENS_22FmhaBwdDQDKDVKernelINS_",
        "_ZN5aiter39fmha_bwd_hd128_bf16_causal_a32_psskddvE",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>",
        "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<>>",
        "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_2",
        "void cudnn::fusion::compute_dot_do_o<true, 128, true>",
        "triton_tem_fused_flex_attention_backward_1",
    ],
    ("attention", "decode"): [
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16>",
        "kernel_unified_attention_3d",
        "reduce_segments",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>",
        "_fwd_grouped_kernel_stage1",
        "_ZN5aiter26mla_dec_stage1_bf16_a16w16E",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<>",
        "_ZN5aiter34pa_bf16_noquant_a16w16_2tg_4wE",
    ],
    # MIOpen, CK, cuDNN
    ("convolution", "forward"): [
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8",
        "void ck::tensor_operation::device::kernel_grouped_conv_fwd_xdl_cshuffle_v3<GridwiseGemm>",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_nhwckrsc_nchw_execute_kernel_cudnn",
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>",
        "naive_conv_ab_nonpacked_fwd_nchw_half_double_half",
    ],
    ("convolution", "backward"): [
        "igemm_bwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x128x32",
        "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x16",
        "void ck::tensor_operation::device::kernel_grouped_conv_bwd_weight_xdl_cshuffle_v3<GridwiseGemm>",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_nhwc_execute_kernel_cudnn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32>",
    ],
    ("convolution", "layout"): [
        "batched_transpose_16x64_pack_1x4_ediv_1x2_half",
        "SubTensorOpWithScalar1d",
        "Im2d2Col_v2",
        "transpose_CNHW2NCHW_V2_2D_WG_off64",
        "void cudnn::ops::nchwToNhwcKernel<float>",
    ],
    ("convolution", ""): [
        "miopenSp3AsmConv_v30_3_1_gfx94x_fp16_dot2_stride1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>",
        "void at::native::(anonymous namespace)::conv_depthwise2d_kernel<3>",
        "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "triton_tem_fused_convolution_4",
    ],
    ("normalization", "forward"): [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::Var>",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>",
        "MIOpenBatchNormFwdTrainSpatial",
    ],
    ("normalization", "backward"): [
        "void at::native::batch_norm_backward_kernel<c10::BFloat16>",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float>",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>",
        "void cudnn::bn_bw_1C11_kernel_new<float>",
        "MIOpenBatchNormBwdSpatial",
    ],
    ("softmax", ""): [
        "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<c10::BFloat16, float>",
        "void (anonymous namespace)::softmax_warp_backward<c10::BFloat16>",
    ],
    ("moe", "routing"): [
        "_combined_routing_compute",
        "_finalize_matmul_scatter_bf16",
        "_topk_forward",
        "_sum_bitmatrix_memset",
        "void vllm::moe::moe_align_block_size_kernel<int>",
        "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16>",
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 2>",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true> >",
        "void aiter::grouped_topk_kernel<float>",
        "_ZN7ck_tile6kentryILi1ENS_16MoeSortingKernelINS_",
        "void count_and_sort_expert_tokens_kernel<int>",
        "_permute_kernel",
    ],
    ("triton", "elementwise"): ["triton_poi_fused__scaled_dot_product_flash_attention_clone_2", "triton_poi_fused_gelu_add_0"],
    ("triton", "normalization"): ["triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1", "triton_red_fused_add_mean_mm_mul_rsqrt_view_17", "triton_per_fused_native_layer_norm_3"],
    ("gemm", "matrix-vector"): ["triton_red_fused__to_copy_add_mean_mm_mul_pow_rsqrt_t_view_14", "triton_red_fused_addmm_t_0"],
    ("triton", "softmax"): ["triton_per_fused__softmax_4"],
    ("triton", "reduction"): ["triton_red_fused_sum_3"],
    ("triton", "embedding"): ["triton_poi_fused_embedding_0"],
    ("elementwise", ""): [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16",
        "void at::native::(anonymous namespace)::upsample_nearest2d_out_frame<float>",
    ],
    ("elementwise", "rotary"): ["void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "_rope_kernel", "void aiter::kn_entry_2c_sbhd_cached_indirect_inplace<aiter::OpCachedFwd>", "kn_entry_1c_sbhd_uncached"],
    ("elementwise", "quantize"): ["void aiter::dynamic_per_token_scaled_quant_kernel<__hip_bfloat16>"],
    ("reduction", ""): ["void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>"],
    ("reduction", "sort"): ["void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "DeviceRadixSortOnesweepKernel"],
    ("reduction", "scan"): ["void rocprim::detail::trampoline_kernel<rocprim::detail::wrapped_scan_config<>>"],
    ("reduction", "pooling"): ["void at::native::(anonymous namespace)::max_pool_backward_nchw<float>"],
    ("reduction", "loss"): ["void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>"],
    ("embedding", ""): [
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "void at::native::(anonymous namespace)::compute_num_of_partial_segments<long>",
    ],
    ("optimizer", ""): [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
        "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float>",
        "triton_for_fused_0",
    ],
    ("communication", ""): ["ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "rcclGenericKernel", "mscclKernel_Sum_hip_bfloat16_Simple_false"],
    ("communication", "all-reduce"): [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>",
        # pytorch, CUDASymmetricMemoryOps.cu
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, unsigned int**)",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        # vLLM and aiter, quickreduce
        "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>",
        "_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataENS_11RankSignalsEPNS_6SignalEii",
        "void allreduce_LL_1node<__nv_bfloat16>(mscclpp::MemoryChannelDeviceHandle*)",  # SGLang
        "userbuffers_fp16_sum_inplace_gpu_rr<8>",  # Transformer Engine
    ],
    ("communication", "all-reduce with norm"): [
        "void aiter::allreduce_fusion_kernel_1stage<std::bfloat16_t, 8, 1>(aiter::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)",
    ],
    ("communication", "dispatch to experts"): [
        "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*, long*)",
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
    ],
    ("communication", "combine from experts"): [
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>",
        "EpCombineInterNodeV1KernelLowLatency_bf16",
    ],
    ("communication", "reduce-scatter"): [
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE", "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>",
    ],
    ("communication", "all-gather"): [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "void aiter::allgather_lastdim<std::bfloat16_t, 8>",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)",
    ],
    ("communication", "send and receive"): [
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
    ],
    ("copy", ""): [
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
        "void at::native::bfloat16tofloat32_copy_kernel_cuda",
        "__amd_rocclr_copyBuffer",
        "multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<long>>",
    ],
    ("copy", "concatenate"): ["void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>>"],
    ("copy", "cache"): ["void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>", "(anonymous namespace)::store_kvcache"],
    ("other", ""): ["some_kernel_that_nobody_knows", ""],
}  # fmt: skip
OPS = {
    "gemm": [
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::linear",
        "aten::matmul",
        "mkldnn::_linear_pointwise",
        "aten::mkldnn_rnn_layer",
        "aten::mkldnn_rnn_layer_backward",
        "aten::_cudnn_rnn",
        "aten::miopen_rnn_backward",
    ],
    "attention": ["aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu"],
    "convolution": ["aten::conv2d", "aten::miopen_convolution", "aten::convolution_backward"],
    "normalization": ["aten::native_layer_norm", "aten::native_batch_norm_backward"],
    "softmax": ["aten::_softmax", "aten::_log_softmax_backward_data"],
    "embedding": ["aten::embedding", "aten::index_select"],
    "moe": ["_moe_C::topk_softmax", "sgl_kernel::moe_align_block_size"],
    "elementwise": ["aten::mul", "aten::add_", "aten::gelu_backward", "aten::native_dropout", "aten::relu"],
    "reduction": ["aten::sum", "aten::topk", "aten::mean", "aten::nll_loss_forward"],
    "copy": ["aten::cat", "aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"],
    "optimizer": ["aten::_fused_adamw_", "Optimizer.step#AdamW.step", "aten::_foreach_add_"],
    "communication": [
        "c10d::allreduce_",
        "record_param_comms",
        "symm_mem::multimem_all_reduce_",
        "_C_custom_ar::all_reduce",
        "vllm::all_reduce",
    ],
    # The whole module is no attention: its projections are GEMMs.
    "other": ["aten::view", "aten::empty", "aten::_native_multi_head_attention"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, n) for kind, names in KERNELS.items() for n in names])
def test_kernel(kind, name):
    assert kernel_kind(name) == kind


@pytest.mark.parametrize(("category", "name"), [(c, n) for c, names in OPS.items() for n in names])
def test_op(category, name):
    assert classify_op(name) == category


def test_every_family_names_a_known_category():
    for families in _families().values():
        assert {family.kind.category for family in families} <= set(CATEGORIES)


@pytest.mark.parametrize("name", [n for (c, _), names in KERNELS.items() if c == "communication" for n in names])
def test_the_timeline_calls_the_same_kernels_communication(name):
    assert communicating_kernel(name)


@pytest.mark.parametrize(
    ("name", "algorithm", "ranks"),
    [
        ("void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*)", "one-shot", 8),
        ("_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi4EEEvPNS_8RankDataE", "two-shot", 4),
        ("void aiter::allreduce_fusion_kernel_1stage<std::bfloat16_t, 8, 1>(aiter::RankData*)", "one-shot", 8),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 2, true, true>", "one-shot", 2),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "in-switch", None),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "", None),
    ],
)  # fmt: skip
def test_a_name_says_how_the_bytes_go_and_among_how_many(name, algorithm, ranks):
    found = communicating_kernel(name)
    assert (found.algorithm, found.ranks) == (algorithm, ranks)


def test_to_lay_out_a_dispatch_is_no_communication():
    assert communicating_kernel("void deep_ep::layout::get_dispatch_layout<256, 32, 1>") is None


def test_every_family_that_communicates_has_a_source_and_a_collective_that_is_known():
    for rows in shipped("analysis/collectives.toml").values():
        for row in rows:
            assert row["source"]
            assert row["collective"] in {"", "dispatch", "combine", *_KINDS.values()}
            assert row.get("algorithm", "") in {"", "one-shot", "two-shot", "in-switch"}


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Host -> Device)", "HtoD"),
        ("MEMORY_COPY_DEVICE_TO_HOST", "DtoH"),
        ("Memcpy PtoP (Device -> Device)", "PtoP"),
        ("CopyHostToDevice", "HtoD"),
        ("Memset (Device)", "memset"),
    ],
)
def test_the_direction_of_a_copy(name, direction):
    assert copy_direction(name, "memset") == direction


@pytest.fixture
def own_file(tmp_path):
    yield tmp_path / "own.toml"
    classifier.use(None)


def test_a_users_own_families_come_first(own_file):
    own_file.write_text('[[kernel]]\ncategory = "our attention"\ndetail = "v2"\npatterns = ["^zz_", "attn_fwd"]\n')
    classifier.use(own_file)
    assert kernel_kind("zz_kernel") == kernel_kind("attn_fwd") == ("our attention", "v2")
    assert kernel_kind("bwd_kernel_dq").category == "attention"
    classifier.use(None)
    assert kernel_kind("zz_kernel").category == "other"


@pytest.mark.parametrize("text", ["nothing = [", '[[kernel]]\ncategory = "x"\n', '[[kernel]]\ncategory = "x"\npatterns = ["("]\n', "kernel = 3\n"])  # fmt: skip
def test_a_file_that_holds_no_families_is_refused_with_its_name(own_file, text):
    own_file.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(own_file))):
        classifier.use(own_file)
