"""The bytes of an operator are those of what it reads and writes; torch on the meta device says what it writes."""

import pytest
from recorded import T, priced

from rung.analysis.costs import Unknown

torch = pytest.importorskip("torch")

F, I64, BF = "float", "long int", "c10::BFloat16"
_TYPES = {F: torch.float32, I64: torch.int64, BF: torch.bfloat16, "bool": torch.bool, "int": torch.int32}
X, IMAGE = T((4, 6, 8)), T((2, 3, 17, 20))
CASES = [
    ("mm", T((3, 5)), T((5, 7))),
    ("addmm", T((7,)), T((3, 5)), T((5, 7))),
    ("bmm", T((2, 3, 5)), T((2, 5, 7))),
    ("matmul", T((6, 1, 3, 5)), T((2, 5, 7))),
    ("matmul", T((3, 5)), T((5,))),
    ("linear", T((2, 3, 5)), T((7, 5)), T((7,))),
    ("mv", T((3, 5)), T((5,))),
    ("add", X, T((6, 1))),
    ("mul", X, T((), F)),
    ("mul", T((4, 6, 8), F), T((4, 1, 8))),
    ("div", T((4,), I64), T((4,), BF)),
    ("eq", X, 0),
    ("gelu", X),
    ("where", T((4, 1, 1), "bool"), X, X),
    ("sum", X, [1], True),
    ("mean", X, [-1, 0], False),
    ("argmax", X, 1),
    ("max", X, 1, False),
    ("max", X, T((8,))),
    ("cumsum", X, 1),
    ("cumsum", T((9,), "bool"), 0),
    ("_softmax", X, -1, False),
    ("cat", [X, T((4, 2, 8))], 1),
    ("repeat", X, [2, 1, 3, 1]),
    ("constant_pad_nd", X, [1, 2, -1, 3], 0),
    ("flip", X, [0]),
    ("topk", X, 3, 1),
    ("sort", X, 1, False),
    ("native_dropout", X, 0.5, True),
    ("gather", X, 1, T((4, 2, 8), I64)),
    ("_adaptive_avg_pool2d", IMAGE, [1, 1]),
    ("avg_pool2d", IMAGE, [3, 3], [2, 2], [1, 1], True),
    ("avg_pool2d", IMAGE, [2, 3], [], [0, 0], False),
    ("max_pool2d_with_indices", IMAGE, [3, 3], [2, 2], [1, 1], [1, 2], True),
    ("max_pool2d_with_indices", IMAGE, [2, 2], [3, 3], [1, 1], [1, 1], True),
    ("upsample_nearest2d", IMAGE, [30, 31], None, None),
    ("upsample_bilinear2d", IMAGE, [30, 31], False, None, None),
    ("linalg_vector_norm", X, 2, [1]),
    ("arange", 1, 12, 1),
    ("tanh_backward", X, X),
    ("glu", X, 2),
    ("_to_copy", X),
]  # fmt: skip


def meta(arg):
    if isinstance(arg, T):
        return torch.empty_strided(arg.shape, arg.steps, dtype=_TYPES[arg.dtype], device="meta")
    return [meta(t) for t in arg] if isinstance(arg, list) and arg and isinstance(arg[0], T) else arg


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


def size(values):
    return sum(t.numel() * t.element_size() for t in tensors(values))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_every_input_is_read_once_and_every_output_written_once(number):
    name, *args = CASES[number]
    given = [meta(arg) for arg in args]
    more = {"device": "meta"} if name == "arange" else {}
    outputs = getattr(torch.ops.aten, name)(*given, **more)
    read = size([t for t in given if isinstance(t, (torch.Tensor, list))])
    if name == "gather":
        read -= size(given[0]) - size(outputs)  # what is picked out, not all of it
    assert priced(f"aten::{name}", *args, item="bf16").bytes == read + size(outputs)


def test_normalisations_read_and_write_their_input_and_read_what_is_small():
    x, gain = T((4, 6, 8)), T((8,))
    assert priced("aten::native_layer_norm", x, [8], gain, gain, 1e-5).bytes == 2 * (2 * 192 + 2 * 8)
    image, channel = T((2, 3, 5, 7)), T((3,), F)
    infer = priced("aten::native_batch_norm", image, channel, channel, channel, channel, False, 0.1, 1e-5).bytes
    assert infer == 2 * 2 * 210 + 4 * 12
    train = priced("aten::native_batch_norm", image, channel, channel, channel, channel, True, 0.1, 1e-5).bytes
    assert train == infer + 4 * 12
    back = priced("aten::native_layer_norm_backward", x, x, [8], T((4, 6, 1), F), T((4, 6, 1), F), gain, gain, [True])
    assert back.bytes == 2 * 3 * 192 + 2 * 2 * 8 + 2 * 4 * 24


def test_an_expanded_view_is_read_once():
    target, source = T((4, 6, 8)), T((4, 6, 8), BF, (8, 0, 1))
    assert priced("aten::copy_", target, source).bytes == 2 * (192 + 32)


def test_in_place_operators_write_what_they_replace():
    assert priced("aten::add_", T((4, 8)), T((8,)), 1).bytes == 2 * (32 + 8 + 32)
    assert priced("aten::relu_", T((4, 8))).bytes == 2 * 64
    assert priced("aten::fill_", T((4, 8)), 0).bytes == 64


def test_embedding_reads_the_rows_that_are_picked():
    table, tokens = T((1000, 16)), T((3, 5), I64)
    assert priced("aten::embedding", table, tokens, -1, False, False).bytes == 15 * 8 + 2 * 2 * 15 * 16
    many = T((100_000,), I64)
    assert priced("aten::embedding", table, many).bytes == 800_000 + 2 * 16 * 1000 + 2 * 16 * 100_000
    assert priced("aten::index_select", table, 0, tokens).bytes == 15 * 8 + 2 * 2 * 15 * 16
    assert priced("aten::index", table, [T((7,))], item="int64").bytes == 7 * 8 + 2 * 2 * 7 * 16


def test_what_is_put_at_indices_is_written_there_however_often_it_is_repeated():
    table, rows = T((100, 16), BF), [T((7,))]
    assert priced("aten::index_put_", table, rows, T((7, 16), BF), item="int64").bytes == 7 * 8 + 2 * 2 * 7 * 16
    assert priced("aten::index_put_", table, rows, T((), BF), item="int64").bytes == 7 * 8 + 2 + 2 * 7 * 16
    assert priced("aten::index_put_", table, None, T((7, 16), BF)).bytes == 2 * 2 * 7 * 16  # which, is not recorded
    for repeated in (T((), BF), T((16,), BF), T((1, 16), BF)):
        with pytest.raises(Unknown):
            priced("aten::index_put_", table, None, repeated)


def test_optimizer_steps_read_and_write_weights_and_state():
    lists = [T((4, 8)), T((10,))]
    item = "fp32"
    adam = priced("aten::_fused_adamw_", lists, lists, lists, lists, [], [T(())], 1e-3, item=item)
    assert adam.bytes == 4 * 42 * 7  # weights, two moments: read and written; gradients: read
    assert priced("aten::_fused_sgd_", lists, lists, lists, 0.1, item=item).bytes == 4 * 42 * 5
    assert priced("aten::_fused_sgd_", lists, lists, [], 0.1, item=item).bytes == 4 * 42 * 3
    assert priced("aten::_foreach_add_", lists, lists, 1, item=item).bytes == 4 * 42 * 3
    assert priced("aten::_foreach_mul_", lists, 2, item=item).bytes == 4 * 42 * 2
    assert priced("aten::_foreach_addcdiv_", lists, lists, lists, 1, item=item).bytes == 4 * 42 * 4


def test_low_precision_products():
    a, b, scale = T((32, 64), "c10::Float8_e4m3fn"), T((64, 16), "c10::Float8_e4m3fn"), T((1,), F)
    found = priced("aten::_scaled_mm", a, b, scale, scale, None, None, 15, True)
    assert (found.precision, found.bytes) == ("fp8", 32 * 64 + 64 * 16 + 2 * 32 * 16 + 8)
    packed = priced("aten::_scaled_mm", T((32, 64), "c10::Float4_e2m1fn_x2"), T((64, 16), "c10::Float4_e2m1fn_x2"))
    assert (packed.precision, packed.flops) == ("fp4", 2 * 32 * 128 * 16)
    whole = priced("aten::_int_mm", T((3, 5), "signed char"), T((5, 7), "signed char"))
    assert (whole.precision, whole.bytes) == ("int8", 3 * 5 + 5 * 7 + 4 * 3 * 7)
    rows = priced("aiter::gemm_a8w8", a, T((16, 64), "c10::Float8_e4m3fn"), T((32, 1), F), T((1, 16), F))
    assert (rows.flops, rows.bytes) == (2 * 32 * 64 * 16, 32 * 64 + 16 * 64 + 2 * 32 * 16 + 4 * 48)


def test_grouped_products_cost_what_their_parts_cost():
    rows, weights, ends = T((96, 8)), T((3, 8, 5)), T((3,), "int")
    assert priced("aten::_grouped_mm", rows, weights, ends).flops == 2 * 96 * 8 * 5  # however the rows are divided
    assert priced("aten::_grouped_mm", T((5, 96)), T((96, 8)), ends).flops == 2 * 5 * 96 * 8
    assert priced("aten::_grouped_mm", T((3, 4, 8)), weights).flops == 2 * 3 * 4 * 8 * 5


def test_experts_cost_what_their_tokens_need():
    tokens, weights = T((16, 8)), (T((4, 12, 8)), T((4, 8, 6)))
    found = priced("vllm::inplace_fused_experts", tokens, *weights, T((16, 2), F), T((16, 2), "int"))
    assert found.flops == 16 * 2 * (2 * 8 * 12 + 2 * 6 * 8)
    assert found.bytes == 2 * 2 * 16 * 8 + 4 * 32 + 2 * 4 * (12 * 8 + 8 * 6)
    one = priced("vllm::inplace_fused_experts", T((1, 8)), *weights, T((1, 2), F), T((1, 2), "int"))
    assert one.bytes == 2 * 2 * 8 + 4 * 2 + 2 * 2 * (12 * 8 + 8 * 6)  # two of the four experts


def test_compiled_kernels_touch_their_tensors_once():
    name = "triton_poi_fused_add_mul_0"
    found = priced(name, T((64, 32)), T((32,), F), T((64, 32)), 2048)
    assert (found.flops, found.bytes) == (0, 2 * 2 * 2048 + 4 * 32)
    product = priced("triton_tem_fused_addmm_1", T((8,)), T((64, 32)), T((32, 8)), T((64, 8)), 1)
    assert (product.flops, product.matrix) == (2 * 64 * 32 * 8, True)
    with pytest.raises(Unknown):  # its operations cannot be told, so it must not look like a copy
        priced("triton_tem_fused_flex_attention_0", T((2, 4, 64, 16)), T((2, 4, 64, 16)), T((2, 4, 64, 16)))


def test_of_a_table_that_is_indexed_a_compiled_kernel_reads_the_rows_that_are_picked():
    # gpt-oss in vLLM: the embedding of 32 tokens.
    found = priced("triton_poi_fused_0", T((32,), "int"), T((201088, 2880)), T((32, 2880)))
    assert found.bytes == 32 * 4 + 2 * 32 * 2880 * 2
    whole = priced("triton_poi_fused_0", T((32,), "int"), T((201088, 2880)), T((16, 2880)))
    assert whole.bytes == 32 * 4 + (201088 + 16) * 2880 * 2


def test_normalisations_of_servers_read_and_write_the_residual_too():
    x = T((32, 4096))
    found = priced("aiter::add_rmsnorm", x, x, x, x, T((4096,)), 1e-6)
    assert found.bytes == 4 * 2 * 32 * 4096 + 2 * 4096
    assert priced("aiter::rmsnorm2d_fwd_with_add_ck", x, x, x, x, T((4096,)), 1e-6, 0) == found
    assert priced("aiter::rmsnorm", x, x, T((4096,)), 1e-6).bytes == 2 * 2 * 32 * 4096 + 2 * 4096
    with pytest.raises(Unknown):
        priced("aiter::add_rmsnorm", x, x, T((32, 8)), x, T((4096,)), 1e-6)


def test_attention_over_a_paged_cache_costs_what_the_annotated_lengths_say():
    prompts, decoding = [(7, 7), (5, 20)], [(1, 100), (1, 3), (3, 50)]  # (queries, keys) of each sequence

    def sums(sequences):
        return "sq{}sk{}sqsq{}sqsk{}".format(
            *(sum(part) for part in zip(*((q, k, q * q, q * k) for q, k in sequences), strict=True))
        )

    said = f"execute_17_context_2({sums(prompts)})_generation_3({sums(decoding)})"
    seen = sum(sum(k - q + i + 1 for i in range(q)) for q, k in prompts + decoding)
    keys = 7 + 20 + 100 + 3 + 50
    q, new, cache = T((32, 64, 64)), T((32, 8, 64)), T((800, 16, 8, 64), "c10::Float8_e4m3fn")
    vllm = priced("vllm::unified_attention_with_output", q, new, new, q, None, around=said)
    assert vllm.flops == 2 * 64 * seen * (64 + 64)
    assert vllm.bytes == 17 * 64 * 128 * 2 + keys * 8 * 128 * 2
    sglang = priced(
        "sglang_profiler::attention_paged_attention_ragged_100",
        q,
        T((9,), "unsigned char"),
        q,
        cache,
        cache,
        around=said,
    )
    assert (sglang.flops, sglang.bytes) == (vllm.flops, 17 * 64 * 128 * 2 + keys * 8 * 128)
    for unknown in ("", "execute_1_context_0()_generation_1()", said.replace("sq12", "sq40")):
        with pytest.raises(Unknown):
            priced("vllm::unified_attention_with_output", q, new, new, q, None, around=unknown)


def test_a_complex_product_is_four_real_ones():
    real, complex_ = (priced("aten::mm", T((3, 5), kind), T((5, 7), kind)) for kind in (F, "c10::complex<float>"))
    assert complex_.flops == 4 * real.flops
    assert complex_.precision == "fp32"


def test_a_tensor_to_hold_the_result_is_written_and_not_read():
    # As a gradient is divided by the world's size in FSDP (../shared/data/traces/mi300_resnet_fsdp_ckpt): mul(self, other, *, out)
    found = priced("aten::mul", T((512,)), T((), "double"), T((512,)))
    assert found.bytes == 2 * 512 + 8 + 2 * 512
    assert priced("aten::add", T((512,)), T((512,)), 1, T((512,))).bytes == 3 * 2 * 512
    assert priced("aten::sqrt", T((512,)), T((512,))).bytes == 2 * 2 * 512
    assert priced("aten::eq", T((512,)), T((512,)), T((512,), "bool")).bytes == 2 * 2 * 512 + 512
