"""Operations agree with torch.utils.flop_counter wherever that knows the operator."""

import math

import pytest
from recorded import T, priced

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import flop_registry  # noqa: E402

from rung.analysis.costs import MODELS  # noqa: E402

aten = torch.ops.aten
B, H, S, D = 2, 4, 48, 16
Q, K, V = T((B, H, S, D)), T((B, H, S + 16, D)), T((B, H, S + 16, D))
LSE = T((B, H, S), "float")
PACKED, CUMULATIVE = T((3 * S, H, D)), T((4,), "int")
FLOAT8 = "c10::Float8_e4m3fn"
CASES = [
    ("mm", T((3, 5)), T((5, 7))),
    ("addmm", T((7,)), T((3, 5)), T((5, 7))),
    ("bmm", T((2, 3, 5)), T((2, 5, 7))),
    ("baddbmm", T((2, 3, 7)), T((2, 3, 5)), T((2, 5, 7))),
    ("_scaled_mm", T((32, 64), FLOAT8), T((64, 16), FLOAT8), T((), "float"), T((), "float")),
    ("_scaled_dot_product_flash_attention", Q, K, V, 0.0, False),
    ("_scaled_dot_product_efficient_attention", Q, K, V, None, True, 0.0, False),
    ("_scaled_dot_product_cudnn_attention", Q, K, V, None, True, 0.0, False),
    ("_scaled_dot_product_flash_attention_for_cpu", Q, K, V, 0.0, False),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", Q, Q, K, V, Q, LSE, 0.0, False),
    ("_scaled_dot_product_flash_attention_backward", Q, Q, K, V, Q, LSE, None, None, S, S, 0.0, False),
    ("_scaled_dot_product_efficient_attention_backward", Q, Q, K, V, None, Q, LSE, None, None, 0.0, [True], False),
    ("_scaled_dot_product_cudnn_attention_backward", Q, Q, K, V, Q, LSE, None, None, None, None, None, S, S, 0.0, False),
    ("_flash_attention_forward", PACKED, PACKED, PACKED, CUMULATIVE, CUMULATIVE, S, S, 0.0, False, False),
    ("_flash_attention_backward", PACKED, PACKED, PACKED, PACKED, PACKED, LSE, CUMULATIVE, CUMULATIVE, S, S, 0.0, False),
]  # fmt: skip


def meta(arg):
    if isinstance(arg, T):
        dtype = {"float": torch.float32, FLOAT8: torch.float8_e4m3fn}.get(arg.dtype, torch.bfloat16)
        return torch.empty_strided(arg.shape, arg.steps, dtype=dtype, device="meta")
    return arg


def counted(name, *args, out=None):
    packet = getattr(aten, name, None)
    if packet not in flop_registry:
        pytest.skip(f"this torch's flop_counter does not know aten::{name}")
    try:
        return flop_registry[packet](*map(meta, args), out_val=out)
    except NotImplementedError as error:  # torch 2.6 looks into the lengths of packed sequences
        pytest.skip(f"this torch's flop_counter counts no aten::{name} of tensors without data: {error}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_matrix_products_and_attention(case):
    name, *args = case
    assert priced(f"aten::{name}", *args).flops == counted(name, *args)


LENGTH_FIRST = [T((B, S, H, D))] * 3
HEADS_FIRST = [T((B, H, S, D))] * 3


@pytest.mark.parametrize(
    ("name", "like", "args"),
    [
        ("aten::_flash_attention_forward", "flash_attention", (None, None, S, S, 0.0, False, False)),
        ("aten::_efficient_attention_forward", "flash_attention", (None, None, None, S, S, 0.0, 0)),
        ("flash_attn::_flash_attn_forward", "flash_attention", (0.0, 0.125, False)),
        ("aiter::mha_fwd", "flash_attention", (0.0, 0.125, False)),
    ],
)
def test_attention_of_the_other_layout(name, like, args):
    """The counter takes the length for the heads in these: it is asked about the same attention, heads first."""
    expected = counted(f"_scaled_dot_product_{like}", *HEADS_FIRST, 0.0, False)
    assert priced(name, *LENGTH_FIRST, *args).flops == expected


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::_flash_attention_backward", (LENGTH_FIRST[0], LSE, None, None, S, S, 0.0, False)),
        ("aten::_efficient_attention_backward", (None, LENGTH_FIRST[0], None, None, S, S, LSE, 0.0, None, None, 0)),
        ("flash_attn::_flash_attn_backward", (LENGTH_FIRST[0], LSE, *LENGTH_FIRST, 0.0, 0.125, False)),
        ("aiter::mha_bwd", (LENGTH_FIRST[0], LSE, 0.0, 0.125, False)),
    ],
)
def test_attention_backward_of_the_other_layout(name, args):
    back = "_scaled_dot_product_flash_attention_backward"
    expected = counted(back, HEADS_FIRST[0], *HEADS_FIRST, HEADS_FIRST[0], LSE, None, None, S, S, 0.0, False)
    assert priced(name, LENGTH_FIRST[0], *LENGTH_FIRST, *args).flops == expected


def test_grouped_queries():
    args = (T((B, 8, S, D)), T((B, 2, S, D)), T((B, 2, S, D)), 0.0, False)
    found = priced("aten::_scaled_dot_product_flash_attention", *args)
    assert found.flops == 4 * B * 8 * S * S * D
    assert found.bytes == 2 * (2 * B * 8 * S * D + 2 * B * 2 * S * D) + 4 * B * 8 * S


CONVOLUTIONS = [
    ((2, 6, 9, 11), (8, 6, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ((2, 6, 9, 11), (8, 3, 3, 3), [2, 1], [0, 1], [1, 2], False, [0, 0], 2),
    ((2, 6, 9, 11), (6, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 6),
    ((2, 6, 9, 11), (6, 4, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    ((2, 6, 9, 11), (6, 2, 2, 3), [2, 2], [0, 1], [1, 1], True, [0, 1], 3),
    ((2, 3, 20), (5, 3, 4), [3], [2], [1], False, [0], 1),
    ((1, 3, 5, 6, 7), (4, 3, 2, 2, 2), [1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: f"{case[0]}-{case[1]}-{case[5]}-{case[7]}")
def test_convolutions_forward_and_both_backward(case):
    shape, weight, *settings = case
    x, w = T(shape), T(weight)
    out = torch.ops.aten.convolution(meta(x), meta(w), None, *settings)
    found = priced("aten::convolution", x, w, None, *settings)
    assert found.flops == counted("convolution", x, w, None, *settings, out=out)
    assert found.flops == priced("aten::convolution_overrideable", x, w, None, *settings).flops
    assert found.bytes == 2 * (math.prod(shape) + math.prod(weight) + out.numel())
    grad = T(tuple(out.shape))
    for mask in ([True, True, False], [True, False, False], [False, True, True]):
        args = (grad, x, w, [0], *settings, mask)
        outs = [meta(x) if mask[0] else None, meta(w) if mask[1] else None, None]
        backward = priced("aten::convolution_backward", *args).flops
        assert backward == found.flops * (mask[0] + mask[1])
        if settings[-1] == 1:  # of grouped ones the counter does not divide the weight's gradient by the groups
            assert backward == counted("convolution_backward", *args, out=outs)


@pytest.mark.parametrize("case", CONVOLUTIONS[:3], ids=lambda case: f"{case[0]}-{case[1]}")
def test_convolutions_of_libraries_take_the_same_settings_elsewhere(case):
    shape, weight, stride, padding, dilation, _, _, groups = case
    x, w = T(shape), T(weight)
    expected = priced("aten::convolution", x, w, None, stride, padding, dilation, False, [0, 0], groups)
    assert priced("aten::cudnn_convolution", x, w, padding, stride, dilation, groups, False, False, True) == expected
    assert priced("aten::miopen_convolution", x, w, None, padding, stride, dilation, groups, False, False) == expected


def test_the_slow_convolution_of_the_cpu():
    """The counter lists it, and takes its arguments for convolution's, which it cannot be called with."""
    x, w, settings = T((2, 6, 9, 11)), T((8, 6, 3, 3)), ([1, 1], [1, 1])
    out = torch.ops.aten.convolution(meta(x), meta(w), None, *settings, [1, 1], False, [0, 0], 1)
    found = priced("aten::_slow_conv2d_forward", x, w, [3, 3], None, *settings)
    assert found.flops == counted("convolution", x, w, None, *settings, [1, 1], False, [0, 0], 1, out=out)


def test_there_is_a_model_for_all_that_the_counter_knows():
    known = {
        f"aten::{str(packet).removeprefix('aten.')}" for packet in flop_registry if str(packet).startswith("aten.")
    }
    assert known - set(MODELS) == set()


def test_what_the_counter_sees_of_a_model_is_what_its_operators_cost(tmp_path):
    """The whole way: a model on the CPU, recorded, read, priced; against the counter's total."""
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    from rung.analysis.costs import Unknown, cost, read_call
    from rung.trace import read

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    x = torch.randn(4, 5, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        model(x).sum().backward()
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    ops = read(tmp_path / "t.json").events.filter(kind="cpu_op")
    total = 0
    for row in ops.select("name", "dims", "dtypes", "strides", "concrete").iter_rows():
        if row[0] in ("aten::mm", "aten::addmm", "aten::bmm"):
            try:
                total += cost(read_call(*row)).flops
            except Unknown:
                pytest.fail(f"{row} has no cost")
    assert total == counter.get_total_flops()
