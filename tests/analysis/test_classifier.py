"""One classifier for ROCm and CUDA names: each family once, and the names that others get wrong."""

import re

import pytest

from rung.analysis.classifier import CATEGORIES, _families, classify_kernel, classify_op
from rung.analysis.gpu_events import COMMUNICATION

KERNELS = {
    "gemm": [
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)",
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_TNN",
        "void internal::gemvx::kernel<int, int, __nv_bfloat16, cublasGemvParamsEx>",
        "void gemv2T_kernel_val<int, int, float>",
        "ampere_sgemm_128x64_nn",
        "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_13GridwiseGemmEEE",
        "triton_tem_fused_addmm_3",
    ],
    "attention": [
        "attn_fwd",
        "bwd_kernel_dk_dv",
        "bwd_kernel_dq",
        "_ZN5aiter26fmha_fwd_hd128_bf16_causalE",
        "_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_20",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
        "kernel_unified_attention_2d",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16>",
        "sage_fwd",
        "triton_tem_fused_flex_attention_0",
    ],
    "convolution": [
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8",
        "batched_transpose_16x64_pack_1x4_ediv_1x2_half",
        "SubTensorOpWithScalar1d",
        "Im2d2Col_v2",
        "transpose_CNHW2NCHW_V2_2D_WG_off64",
        "void ck::tensor_operation::device::kernel_grouped_conv_fwd_xdl_cshuffle_v3<GridwiseGemm>",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_nhwckrsc_nchw_execute_kernel_cudnn",
        "void cudnn::ops::nchwToNhwcKernel<float>",
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>",
    ],
    "normalization": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256E",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>",
        "triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16",
        "triton_poi_fused__scaled_dot_product_flash_attention_clone_2",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
        "triton_red_fused_sum_3",
        "_topk_forward",
    ],
    "softmax": [
        "void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<c10::BFloat16, float>",
        "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16>",
        "triton_per_fused__softmax_4",
    ],
    "embedding": [
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
        "triton_for_fused_0",
    ],
    "communication": [
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "rcclGenericKernel",
        "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>",
    ],
    "copy": [
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
        "void at::native::bfloat16tofloat32_copy_kernel_cuda",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>>",
        "__amd_rocclr_copyBuffer",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>",
        "multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<long>>",
    ],
    "other": ["some_kernel_that_nobody_knows", ""],
}
OPS = {
    "gemm": [
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::linear",
        "aten::matmul",
        "mkldnn::_linear_pointwise",
    ],
    "attention": ["aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention_for_cpu"],
    "convolution": ["aten::conv2d", "aten::miopen_convolution", "aten::convolution_backward"],
    "normalization": ["aten::native_layer_norm", "aten::native_batch_norm_backward"],
    "softmax": ["aten::_softmax", "aten::_log_softmax_backward_data"],
    "embedding": ["aten::embedding", "aten::index_select"],
    "elementwise": ["aten::mul", "aten::add_", "aten::gelu_backward", "aten::native_dropout", "aten::relu"],
    "reduction": ["aten::sum", "aten::topk", "aten::mean", "aten::nll_loss_forward"],
    "copy": ["aten::cat", "aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"],
    "optimizer": ["aten::_fused_adamw_", "Optimizer.step#AdamW.step", "aten::_foreach_add_"],
    "communication": ["c10d::allreduce_", "record_param_comms"],
    # The whole module is no attention: its projections are GEMMs.
    "other": ["aten::view", "aten::empty", "aten::_native_multi_head_attention"],
}


@pytest.mark.parametrize(("category", "name"), [(c, n) for c, names in KERNELS.items() for n in names])
def test_kernel(category, name):
    assert classify_kernel(name) == category


@pytest.mark.parametrize(("category", "name"), [(c, n) for c, names in OPS.items() for n in names])
def test_op(category, name):
    assert classify_op(name) == category


def test_every_family_names_a_known_category():
    for families in _families().values():
        assert {category for category, _ in families} <= set(CATEGORIES)


@pytest.mark.parametrize("name", KERNELS["communication"])
def test_the_timeline_calls_the_same_kernels_communication(name):
    assert re.search(COMMUNICATION, name)
