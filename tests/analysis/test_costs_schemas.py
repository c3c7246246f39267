"""The positions that the models take their inputs from are those of torch's own schemas."""

import pytest

from rung.analysis.costs import MODELS
from rung.analysis.costs.attention import FORMS as ATTENTION
from rung.analysis.costs.convolution import FORMS as CONVOLUTION
from rung.analysis.costs.pointwise import ARITY

torch = pytest.importorskip("torch")


def arguments(name):
    """The names of the arguments of an operator, of its overload without outputs to write into."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        pytest.skip(f"this torch has no {name}")
    return [argument.name for argument in getattr(packet, packet.overloads()[0])._schema.arguments]


@pytest.mark.parametrize("name", [name for name in ATTENTION if name.startswith("aten::")])
def test_attention(name):
    names, (_, form) = arguments(name), ATTENTION[name]
    assert names[form.q : form.q + 3] == ["query", "key", "value"]
    if form.causal >= 0:
        assert names[form.causal] in ("is_causal", "custom_mask_type")
    if form.lengths >= 0:
        assert names[form.lengths] in ("cum_seq_q", "cu_seqlens_q")
        assert names[form.lengths + 1] in ("cum_seq_k", "cu_seqlens_k")
    if form.mask >= 0:
        assert names[form.mask] in ("attn_bias", "attn_mask", "bias")


@pytest.mark.parametrize("name", CONVOLUTION)
def test_convolutions(name):
    names, form = arguments(name), CONVOLUTION[name]
    assert names[0] in ("self", "input")
    assert names[1] == "weight"
    for field in ("stride", "padding", "dilation", "groups", "bias", "transposed", "output_padding"):
        if getattr(form, field) >= 0:
            assert names[getattr(form, field)] == field


# What the other models read by position.
PLACES = {
    "_scaled_mm": {2: "scale_a", 3: "scale_b", 4: "bias", 6: "out_dtype"},
    "_grouped_mm": {2: "offs", 4: "out_dtype"},
    "_scaled_grouped_mm": {2: "scale_a", 3: "scale_b", 4: "offs", 7: "out_dtype"},
    "convolution_backward": {0: "grad_output", 1: "input", 2: "weight", 7: "transposed", 10: "output_mask"},
    "native_batch_norm": {0: "input", 5: "training"},
    "cudnn_batch_norm": {0: "input", 5: "training"},
    "miopen_batch_norm": {0: "input", 5: "training"},
    "_native_batch_norm_legit": {0: "input", 5: "training"},
    "native_layer_norm_backward": {0: "grad_out", 1: "input"},
    "native_group_norm_backward": {0: "grad_out", 1: "input"},
    "native_batch_norm_backward": {0: "grad_out", 1: "input"},
    "cudnn_batch_norm_backward": {0: "input", 1: "grad_output"},
    "miopen_batch_norm_backward": {0: "input", 1: "grad_output"},
    "_fused_rms_norm_backward": {0: "grad_out", 1: "input"},
    "_softmax": {2: "half_to_float"},
    "_softmax_backward_data": {0: "grad_output", 1: "output"},
    "nll_loss_forward": {0: "self", 1: "target"},
    "nll_loss_backward": {0: "grad_output", 1: "self", 2: "target"},
    "embedding": {0: "weight", 1: "indices"},
    "embedding_dense_backward": {0: "grad_output", 1: "indices", 2: "num_weights"},
    "_embedding_bag": {0: "weight", 1: "indices", 2: "offsets"},
    "index_select": {0: "self", 1: "dim", 2: "index"},
    "gather": {0: "self", 1: "dim", 2: "index"},
    "scatter_": {0: "self", 1: "dim", 2: "index", 3: "src"},
    "index_add_": {0: "self", 1: "dim", 2: "index", 3: "source"},
    "index_put_": {0: "self", 1: "indices", 2: "values"},
    "topk": {0: "self", 1: "k", 2: "dim"},
    "max_pool2d_with_indices": {1: "kernel_size", 2: "stride", 3: "padding", 4: "dilation", 5: "ceil_mode"},
    "avg_pool2d": {1: "kernel_size", 2: "stride", 3: "padding", 4: "ceil_mode"},
    "max_pool2d_with_indices_backward": {0: "grad_output", 1: "self"},
    "upsample_bilinear2d": {0: "self", 1: "output_size"},
    "constant_pad_nd": {0: "self", 1: "pad"},
    "repeat": {0: "self", 1: "repeats"},
    "mse_loss": {0: "self", 1: "target", 2: "reduction"},
    "linalg_vector_norm": {0: "self", 2: "dim"},
    "_fused_adamw_": {0: "self", 1: "grads", 2: "exp_avgs", 3: "exp_avg_sqs", 5: "state_steps"},
    "_fused_sgd_": {0: "self", 1: "grads", 2: "momentum_buffer_list"},
    "_fused_adagrad_": {0: "self", 1: "grads", 2: "state_sums"},
    "_foreach_addcdiv_": {0: "self", 1: "tensor1", 2: "tensor2"},
    "_foreach_lerp_": {0: "self", 1: "tensors1"},
}


# Operators that torch 2.6 does not have yet.
NEWER = {
    "aten::_cudnn_attention_forward", "aten::_fused_rms_norm", "aten::_fused_rms_norm_backward", "aten::_grouped_mm",
    "aten::_scaled_grouped_mm",
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_others(name):
    assert f"aten::{name}" in MODELS
    names = arguments(name)
    assert {place: names[place] for place in PLACES[name]} == PLACES[name]


def test_there_is_such_an_operator():
    """A name with a slip in it would never be met."""
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    aten = {name for name in MODELS if name.startswith("aten::")}
    # In-place forms are given to all elementwise operators, whether they have one or not.
    missing = {name for name in aten if name not in known and name.removesuffix("_") not in known}
    if torch.__version__ < torch.torch_version.TorchVersion("2.10"):
        missing -= NEWER
    assert missing == set()


@pytest.mark.parametrize("name", ARITY)
def test_the_tensor_for_the_result_comes_behind_those_that_are_read(name):
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    with_result = [s.arguments for s in schemas if s.arguments[-1].is_out and not s.arguments[-2].is_out]
    assert with_result
    # Some take a number for one of their tensors.
    assert max(sum(str(a.type) == "Tensor" for a in arguments) for arguments in with_result) == ARITY[name] + 1
