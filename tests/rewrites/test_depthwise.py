"""Gradients of the inputs of depthwise convolutions that are forward convolutions: the graphs of Inductor, on a CPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from known_facts import facts_of
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.counts import count
from rung.rewrites.inductor_passes.depthwise import depthwise_dgrad, turn_windows
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Counters

aten = torch.ops.aten
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS = [torch.contiguous_format, torch.channels_last]


@given(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 7), st.integers(1, 7), st.integers(1, 3), st.integers(1, 3),
    st.data(), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_it_is_the_gradient(
    n: int, channels: int, high: int, wide: int, apart: int, more: int, data: Any, last: bool
) -> None:
    padding = [data.draw(st.integers(0, apart * (size - 1))) for size in (high, wide)]
    least = [max(1, apart * (size - 1) + 1 - 2 * pad) for size, pad in zip((high, wide), padding, strict=True)]
    x = torch.randn(n, channels, *(size + more for size in least), dtype=torch.float64, requires_grad=True)
    weight = torch.randn(channels, 1, high, wide, dtype=torch.float64)
    y = F.conv2d(x, weight, None, 1, padding, apart, channels)
    slope = torch.randn_like(y)
    y.backward(slope)
    got = depthwise_dgrad(slope, weight, padding, [apart, apart], last)
    torch.testing.assert_close(got, x.grad)
    assert got.is_contiguous(memory_format=LAYOUTS[last])
    torch.library.opcheck(
        torch.ops.rung.depthwise_dgrad.default,
        (slope, weight, padding, [apart, apart], last),
        test_utils=("test_schema", "test_faketensor"),
    )


def backward(wanted: list[bool], channels: int = 6, groups: int = 6, **changed: Any) -> Callable[..., Any]:
    options = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], **changed}

    def function(slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        found = aten.convolution_backward.default(
            slope, x, weight, None, options["stride"], options["padding"], options["dilation"], False, [0, 0], groups, wanted
        )  # fmt: skip
        return tuple(each for each in found if each is not None)

    return function


def shapes(x: tuple[int, ...], weight: tuple[int, ...], function: Callable[..., Any], **options: Any) -> list[Any]:
    made = F.conv2d(torch.randn(x), torch.randn(weight), None, groups=x[1] // weight[1], **options)
    return [torch.randn_like(made), torch.randn(x), torch.randn(weight)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("wanted", [[True, True, False], [True, False, False]], ids=str)
def test_what_else_is_asked_of_a_convolution_stays_there(layout: torch.memory_format, wanted: list[bool]) -> None:
    function = backward(wanted)
    inputs = [t.to(memory_format=layout) for t in shapes((2, 6, 5, 7), (6, 1, 3, 3), function, padding=1)]
    made = make_fx(function, tracing_mode="fake")(*inputs)
    made.graph.eliminate_dead_code()  # results that nobody reads, as Inductor does before
    assert turn_windows(made.graph) == 1
    made.graph.lint()
    made.recompile()
    left = made.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    assert [node.args[-1] for node in left] == ([[False, True, False]] if wanted[1] else [])
    turned = made.graph.find_nodes(op="call_function", target=torch.ops.rung.depthwise_dgrad.default)[0]
    assert turned.args[-1] == (layout is torch.channels_last)
    for got, want in zip(made(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert turn_windows(made.graph) == 0  # it is done


@pytest.mark.parametrize(
    ("x", "weight", "wanted", "options"),
    [
        ((2, 6, 5, 7), (6, 1, 3, 3), [False, True, False], {"padding": [1, 1]}),
        ((2, 6, 5, 7), (6, 1, 3, 3), [True, True, False], {"padding": [1, 1], "stride": [2, 1]}),
        ((2, 6, 5, 7), (6, 1, 3, 3), [True, True, False], {"padding": [3, 1]}),  # what is left of the padding is negative
        ((2, 6, 5, 7), (12, 1, 3, 3), [True, True, False], {"padding": [1, 1]}),  # two results of each channel
        ((2, 6, 5, 7), (6, 2, 3, 3), [True, True, False], {"padding": [1, 1]}),
        ((2, 1, 5, 7), (1, 1, 3, 3), [True, True, False], {"padding": [1, 1]}),  # an ordinary one
    ],
)  # fmt: skip
def test_others_are_left_alone(x: Any, weight: Any, wanted: list[bool], options: dict[str, Any]) -> None:
    function = backward(wanted, groups=x[1] // weight[1], **options)
    made = make_fx(function, tracing_mode="fake")(*shapes(x, weight, function, **options))
    assert turn_windows(made.graph) == 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 4)
        self.wide = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.apart = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.halved = nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.halved(self.apart(self.wide(self.stem(x)).relu()).relu()).mean((2, 3)))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were turned in each graph that Inductor compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    found: list[int] = []

    def counted(graph: torch.fx.Graph) -> int:
        found.append(turn_windows(graph))
        return found[-1]

    monkeypatch.setattr("rung.rewrites.inductor_passes.depthwise.turn_windows", counted)
    return found


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    backend = RewriteBackend([], inductor_options={"force_disable_caches": True}, inductor_passes=["depthwise-dgrad"])
    return torch.compile(function, backend=backend, **options)


@pytest.mark.parametrize(("layout", "amp"), [(torch.contiguous_format, False), (torch.channels_last, True)], ids=str)
def test_a_network_trains_as_before(layout: torch.memory_format, amp: bool, counts: list[int]) -> None:
    model, x = Net().to(DEVICE, memory_format=layout), torch.randn(2, 3, 12, 12, device=DEVICE)
    run = compiled(model)

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
            loss = call(x).float().square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    near = {"rtol": 5e-2, "atol": 5e-2} if amp else {"rtol": 1e-3, "atol": 1e-4}
    for got, want in zip(gradients(run), gradients(model), strict=True):
        scale = float(want.abs().max()) + 1e-6
        torch.testing.assert_close(got / scale, want / scale, **near)
    assert counts == [0, 2]


def test_a_backward_pass_inside_autocast_computes_in_the_dtype_of_the_forward_pass(counts: list[int]) -> None:
    """Compiled code reads the memory of what an operator returns as the dtype that it was traced with."""
    slope, weight = torch.randn(2, 6, 8, 8, device=DEVICE), torch.randn(6, 1, 3, 3, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        made = depthwise_dgrad(slope, weight, [1, 1], [1, 1], False)
    assert made.dtype == torch.float32  # else the rest would read and write beyond it
    model, x = Net().to(DEVICE), torch.randn(2, 3, 12, 12, device=DEVICE)
    want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    loss = compiled(model)(x).square().sum()
    with torch.autocast(DEVICE, torch.bfloat16):
        got = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    assert counts == [0, 2]


@pytest.mark.parametrize(
    ("padding", "dynamic", "turned"),
    [("valid", False, 1), ("same", False, 1), (lambda x: x.shape[2] // 9, True, 0)],
    ids=["valid", "same", "of the shape"],
)
def test_padding_is_one_number_words_or_computed(padding: Any, dynamic: bool, turned: int, counts: list[int]) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, None, 1, padding if isinstance(padding, str) else padding(x), 1, 6).square().sum()

    inputs = [torch.randn(2, 6, 9, 10, requires_grad=True), torch.randn(6, 1, 3, 3, requires_grad=True)]
    want = torch.autograd.grad(function(*inputs), inputs)
    got = torch.autograd.grad(compiled(function, dynamic=dynamic)(*inputs), inputs)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    assert sum(counts) == turned


def test_the_survey_counts_those_of_stride_1() -> None:
    parts: list[torch.fx.GraphModule] = []

    def backend(part: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        parts.append(part)
        return part.forward

    torch._dynamo.reset()
    torch.compile(Net(), backend=backend)(torch.randn(2, 3, 12, 12))
    assert count(parts)["depthwise"] == 2


def test_it_applies_where_training_of_such_a_network_is_compiled_for_a_gpu() -> None:
    rung = BY_NAME["depthwise-dgrad"]
    facts = {"gpu": True, "mode": "train", "captured": {"convolution": 4, "depthwise": 2}}
    here = Context(Plan(compile=True), "bf16", facts_of(facts), {}, {})
    assert rung.applies(here) is None
    for change, says in (
        ({"gpu": False}, "GPUs"),
        ({"mode": "infer"}, "inference"),
        ({"captured": {}}, "no depthwise"),
    ):
        assert says in str(rung.applies(replace(here, facts=facts_of(facts, **change))))
    assert "torch.compile" in str(rung.applies(replace(here, plan=Plan())))
    assert rung.change(here.plan).inductor_passes == ("depthwise-dgrad",)
    for name in (
        "void dgrad2d_c1_k1_nhwc_kernel_specialized_window<__half, float, float, 5, 1, true>",
        "sm80_xmma_depthwise_convolution_dgrad_tiling_f16f16_f32f32_f32_nhwckrsc_nhwc_tilesize1x8x8_1x5x5",
        "at::native::(anonymous namespace)::conv_depthwise2d_backward_kernel<3, 1, float, int>",
        "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32",
        "naive_conv_ab_nonpacked_bwd_nchw_half_double_half",
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_bwd_data_multiple_d_xdl_cshuffle",
        "Col2Im2dU",
    ):
        before, after = ({name: n, "wgrad2d_c1_k1_nhwc": 4.0} for n in (4.0, 2.0))
        shown = [Counters(90, 90, 90, names) for names in (before, after)]
        assert rung.proof(Evidence(*shown, {"pass depthwise-dgrad": True})).shown is True, name
        assert rung.proof(Evidence(shown[0], shown[0], {"pass depthwise-dgrad": True})).shown is False, name
