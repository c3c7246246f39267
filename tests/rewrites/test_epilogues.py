"""Activations behind products and convolutions, in one call with them: what is found, that results are the same, and what is left."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from known_facts import facts_of
from torch import nn

from rung.plan import Plan
from rung.rewrites import RewriteBackend, epilogues
from rung.rewrites.convolution_epilogues import convolution_relu
from rung.rungs import BY_NAME, Context

Function = Callable[[torch.Tensor], torch.Tensor]
LINEAR = ("activation-epilogue", "gelu-epilogue")
FOLDED = ("folded-batch-norm", "convolution-epilogue")


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it: its weight the other way, its rows flat."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class FeedForward(nn.Module):
    def __init__(self, activation: Function, layer: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.up, self.activation, self.down = layer(8, 16), activation, nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.activation(self.up(x)))


def rewritten(model: nn.Module, *inputs: torch.Tensor, passes: tuple[str, ...] = LINEAR, inner: Any = "eager", amp: bool = False) -> RewriteBackend:  # fmt: skip
    """Compares results, and how they lie, with those of the model as it is, in inference."""
    torch._dynamo.reset()
    backend = RewriteBackend(passes, inner)
    run = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    near = {"rtol": 2e-2, "atol": 2e-2} if amp else {"rtol": 1e-4, "atol": 1e-5}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
        want, got = model(*inputs), run(*inputs)
    torch.testing.assert_close(got, want, **near)
    assert got.stride() == want.stride()
    return backend


def long_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


def factored_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def by_erf(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))


FOUND: dict[str, tuple[Function, str]] = {
    "relu": (F.relu, "activation-epilogue"),
    "relu in place": (nn.ReLU(inplace=True), "activation-epilogue"),
    "clamp": (lambda x: x.clamp(min=0), "activation-epilogue"),
    "relu, and its square": (lambda x: F.relu(x).square(), "activation-epilogue"),
    "tanh": (nn.GELU("tanh"), "activation-epilogue"),
    "tanh by hand": (long_tanh, "activation-epilogue"),
    "tanh by hand, factored": (factored_tanh, "activation-epilogue"),
    "tanh by hand, in float32": (lambda x: long_tanh(x.float()).to(x.dtype), "activation-epilogue"),
    "gelu": (F.gelu, "gelu-epilogue"),
    "gelu by hand": (by_erf, "gelu-epilogue"),
    "gelu of a view": (lambda x: F.gelu(x.view(-1, 16)).view(x.shape), "gelu-epilogue"),
    "gelu, and dropout that is off": (lambda x: F.dropout(F.gelu(x), 0.5, training=False), "gelu-epilogue"),
}


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("layer", [nn.Linear, Conv1D])
@pytest.mark.parametrize("name", FOUND)
def test_an_activation_is_known_by_what_it_computes(name: str, layer: type[nn.Module], amp: bool) -> None:
    activation, which = FOUND[name]
    assert rewritten(FeedForward(activation, layer), torch.randn(2, 3, 8), amp=amp).rewritten == {which: 1}


LEFT: dict[str, Function] = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu by a sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "relu with a cap": lambda x: F.hardtanh(x, 0.0, 20.0),
    "relu with a far cap": lambda x: x.clamp(0.0, 65000.0),
    "leaky": lambda x: F.leaky_relu(x, 1e-4),
    "read twice": lambda x: F.relu(x) + x,
    "written to, and read again": lambda x: F.relu_(x) + x * 2,
    "of two": lambda x: F.relu(x + x.flip(0)),
    "no smaller than a little": lambda x: x.clamp(min=1e-12).log(),
    "leaky, hardly": lambda x: F.leaky_relu(x, 1e-45),
    "with the farthest cap": lambda x: x.clamp(0.0, 1.5e38),
    "of whole numbers": lambda x: F.relu(x.to(torch.int32).float()),
    "of truths": lambda x: F.relu(x.to(torch.bool).float()),
    "of float16": lambda x: F.relu(x.half().float()),
    "of 8 bits": lambda x: F.relu(x.to(torch.float8_e4m3fn).float()),
    "of a copy": lambda x: (F.relu_(x.double()), x * 1.0)[1],
    "of imaginary numbers": lambda x: (x * 1j).imag,
    "of a dropout": lambda x: F.relu(F.dropout(x, 0.5, training=False)),
}


@pytest.mark.parametrize("name", LEFT)
def test_anything_else_is_left(name: str) -> None:
    assert not rewritten(FeedForward(LEFT[name]), torch.randn(2, 3, 8)).rewritten


def test_a_result_that_lies_otherwise_is_left() -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.layer(x).to(memory_format=torch.channels_last))

    assert not rewritten(Images(), torch.randn(2, 3, 4, 4)).rewritten


@pytest.mark.parametrize("alias", [torch.Tensor.float, torch.Tensor.contiguous, lambda y: y.to(torch.float32)])
def test_what_is_written_to_the_product_by_another_name_counts(alias: Function) -> None:
    """A cast to the dtype that a tensor has is the tensor itself."""

    def negated(y: torch.Tensor) -> torch.Tensor:
        alias(y).mul_(-2)
        return F.relu(y)

    assert rewritten(FeedForward(negated), torch.randn(2, 3, 8)).rewritten == {}


def test_relu_by_the_absolute_value_is_another_where_it_overflows() -> None:
    backend = rewritten(FeedForward(lambda y: 0.5 * (y + y.abs())), torch.randn(2, 3, 8))
    assert backend.rewritten == {}


def test_what_cannot_be_compared_leaves_the_others() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.first(x)) + (self.second(x) * 1j).imag

    assert rewritten(Two(), torch.randn(2, 4)).rewritten == {"activation-epilogue": 1}


def test_autocast_leaves_float64_as_it_is() -> None:
    model = FeedForward(F.gelu).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    torch._dynamo.reset()
    run = torch.compile(model, backend=RewriteBackend(LINEAR, "eager"), dynamic=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(run(x), model(x), rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert [epilogues.cast(t).dtype for t in (x, x.float(), x.long())] == [
            torch.float64,
            torch.bfloat16,
            torch.int64,
        ]


STEPS: dict[str, Function] = {
    "relu": F.relu, "gelu": F.gelu, "tanh gelu": nn.GELU("tanh"), "silu": F.silu, "double": lambda x: x * 2, "one more": lambda x: x + 1,
    "cut": lambda x: x.clamp(-1, 1), "in place": lambda x: x.mul_(0.5), "copied": torch.clone, "wide": torch.Tensor.double, "narrow": torch.Tensor.float,
    "with itself": lambda x: x * x.sigmoid(), "apart": lambda x: x.view(x.shape[0], -1, 2), "flat": lambda x: x.reshape(x.shape[0], -1),
}  # fmt: skip


@given(steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_whatever_follows_a_product_results_are_the_same(steps: list[str]) -> None:
    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            for step in steps:
                x = STEPS[step](x)
            return x

    rewritten(Program(), torch.randn(5, 4) * 30)  # far enough for caps to show


def test_a_product_without_a_bias_and_one_that_is_trained_are_left() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.layer(x))

    assert not rewritten(Bare(), torch.randn(2, 4)).rewritten
    torch._dynamo.reset()
    model, backend = FeedForward(F.relu), RewriteBackend(LINEAR, "eager")
    torch.compile(model, backend=backend, dynamic=False)(torch.randn(2, 3, 8)).sum().backward()
    assert not backend.rewritten
    assert "it needs a gradient" in backend.skipped[0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("activation", "which"), [(F.gelu, "gelu-epilogue"), (long_tanh, "activation-epilogue"), (F.relu, ""), (F.silu, "")]
)
@pytest.mark.parametrize(("inner", "amp"), [("eager", False), ("eager", True), ("inductor", True)])
def test_a_pointwise_convolution_is_a_product(
    inner: Any, amp: bool, activation: Function, which: str, layout: torch.memory_format
) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(activation(self.up(x)))

    model, x = Block().to(memory_format=layout), torch.randn(2, 3, 4, 5).to(memory_format=layout)
    assert rewritten(model, x, inner=inner, amp=amp).rewritten == ({which: 1} if which else {})


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"padding": 1}, {"groups": 3}, {"bias": False}, {"kernel_size": 3}, {"padding": "same"}]
)
def test_other_convolutions_are_none(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Conv2d(**{"in_channels": 3, "out_channels": 6, "kernel_size": 1, **options}), nn.GELU())
    assert not rewritten(model, torch.randn(2, 3, 4, 4)).rewritten


@pytest.mark.parametrize("size", [(2, 1, 4, 4), (2, 3, 1, 1), (1, 1, 1, 1)])
def test_where_both_layouts_are_one_a_result_lies_as_the_convolutions(size: tuple[int, ...]) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        model = nn.Sequential(nn.Conv2d(size[1], 6, 1), nn.GELU()).to(memory_format=layout)
        assert rewritten(model, torch.randn(size).to(memory_format=layout)).rewritten


@pytest.mark.parametrize("activation", [F.relu, F.gelu, long_tanh])
def test_compiled_by_inductor_it_is_the_same(activation: Function) -> None:
    backend = rewritten(FeedForward(activation), torch.randn(2, 3, 8), inner="inductor")
    assert backend.rewritten
    assert backend.before["layer_flop"] == backend.after["layer_flop"]  # a product is counted with an activation, too


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gelu_is_exact_where_its_form_with_tanh_would_show(dtype: torch.dtype) -> None:
    x, weight, bias = (
        torch.linspace(-4, 4, 64, dtype=dtype)[:, None],
        torch.ones(1, 1, dtype=dtype),
        torch.zeros(1, dtype=dtype),
    )
    torch.testing.assert_close(epilogues.linear_gelu(x, weight, bias), F.gelu(x), rtol=0, atol=0)


def test_in_bfloat16_its_form_with_tanh_is_nearer_to_gelu_than_two_roundings() -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*size).bfloat16() for size in ((512, 64), (256, 64), (256,)))
    exact = F.gelu(F.linear(x.double(), weight.double() / 8, bias.double()))
    twice = F.gelu(F.linear(x, weight / 8, bias)) - exact
    product = F.linear(x.float(), weight.float() / 8, bias.float())
    once = F.gelu(product, approximate="tanh").bfloat16() - exact
    assert once.norm() < twice.norm()


class Block(nn.Module):
    """Two convolutions of a residual network; the sum in one of its spellings."""

    def __init__(self, add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], **options: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1, **options), nn.Conv2d(8, 8, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in "ab")
        for norm in self.norms:
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
        self.add = add
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.add(self.norms[1](self.second(y)), x))


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x += y
    return x


SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "new": lambda x, y: x + y, "turned": lambda x, y: y + x, "function": lambda x, y: torch.add(x, y), "in place": in_place, "method": lambda x, y: x.add_(y),
}  # fmt: skip


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("spelling", SUMS)
def test_a_residual_block_is_two_calls(spelling: str, layout: torch.memory_format) -> None:
    model, x = Block(SUMS[spelling]).to(memory_format=layout), torch.randn(2, 8, 5, 5).to(memory_format=layout)
    assert rewritten(model, x, passes=FOLDED).matches == {"folded-batch-norm": 2, "convolution-epilogue": 2}


def test_under_autocast_it_is_cast_as_the_convolution_is() -> None:
    model, x = Block(lambda x, y: x + y), torch.randn(2, 8, 5, 5)
    matches = rewritten(model, x, passes=FOLDED, amp=True).matches
    # The input is float32 and the convolution's result is not: their sum is float32, and is left.
    assert matches == {"folded-batch-norm": 2, "convolution-epilogue": 1}


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Block(lambda x, y: x + y, groups=2), "its channels are in groups"),
        (nn.Sequential(nn.Conv2d(8, 12, 1), nn.ReLU()), "its 8 and 12 channels are no multiples of 8"),
        (nn.Sequential(nn.Conv2d(8, 8, 3, padding="same"), nn.ReLU()), "its padding is a word"),
        (Block(lambda x, y: x + y[:1]), "has another shape or dtype"),
        (Block(lambda x, y: (x + y) * (y := x)), ""),
    ],
)
def test_other_convolutions_are_left_with_a_reason(model: nn.Module, why: str) -> None:
    backend = rewritten(model, torch.randn(2, 8, 5, 5), passes=FOLDED)
    assert why in "".join(backend.skipped)
    assert backend.matches["convolution-epilogue"] < 2


def test_a_sum_of_two_layouts_and_one_of_a_convolution_with_itself_are_left() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixed = nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last)
            self.twice, self.alone = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.twice(x)
            return F.relu(x + self.mixed(x)).view(2, -1), F.relu(y + y), F.relu(self.alone(x))

    torch._dynamo.reset()
    model, x, backend = Sums(), torch.randn(2, 8, 5, 5), RewriteBackend(FOLDED, "eager")
    with torch.no_grad():
        for got, want in zip(torch.compile(model, backend=backend, dynamic=False)(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            assert got.stride() == want.stride()
    assert backend.matches["convolution-epilogue"] == 1
    assert any("lies otherwise" in reason for reason in backend.skipped)


def test_what_is_added_in_place_to_the_other_is_left() -> None:
    """Its memory is read again."""

    class Written(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = x * 2
            shortcut = kept
            shortcut += self.second(x)
            return F.relu(shortcut) + kept

    backend = rewritten(Written(in_place), torch.randn(2, 8, 5, 5), passes=FOLDED)
    assert not backend.matches["convolution-epilogue"]


@pytest.mark.parametrize("written", ["x", "summand", "weight"])
def test_what_is_written_between_convolution_and_relu_keeps_them_apart(written: str) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(8, 8, 1)
            self.register_buffer("weight", torch.randn(8, 8, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, summand, weight = x * 1, x * 3, self.weight * 1
            y = F.conv2d(x, weight, self.layer.bias) + summand
            {"x": x, "summand": summand, "weight": weight}[written].mul_(0.5)
            return F.relu(y) + x + summand

    assert not rewritten(Writing(), torch.randn(2, 8, 4, 4), passes=FOLDED).matches["convolution-epilogue"]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_operator_tells_the_compiler_what_the_convolution_would(layout: torch.memory_format) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x, weight = torch.empty(2, 8, 9, 9).to(memory_format=layout), torch.empty(16, 8, 3, 3).to(memory_format=layout)
        want = F.conv2d(x, weight, None, [2, 2], [1, 1], [1, 1])
        got = torch.ops.rung.convolution_relu(x, weight, None, None, [2, 2], [1, 1], [1, 1])
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


@pytest.mark.skipif(not torch.cuda.is_available() or bool(torch.version.hip), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("amp", [False, True])
def test_on_a_gpu_a_convolution_reads_no_memory_that_nobody_wrote(added: bool, amp: bool) -> None:
    x = torch.randn(4, 16, 14, 14, device="cuda").to(memory_format=torch.channels_last)
    weight, bias = torch.randn(32, 16, 3, 3, device="cuda") / 12, torch.randn(32, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=amp):
        made = F.conv2d(x, weight, bias, padding=1)
        summand = torch.randn_like(made) if added else None
        want = F.relu(made if summand is None else made + summand)
        for _ in range(3):
            poison = [torch.full_like(made, float("nan")) for _ in range(4)]
            del poison
            got = convolution_relu(x, weight, bias, summand, (1, 1), (1, 1), (1, 1))
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["linear_relu", "linear_tanh_gelu", "linear_gelu"])
def test_on_a_gpu_the_library_computes_the_activation(name: str, dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(*size, device="cuda", dtype=dtype) / 4 for size in ((3, 40, 64), (128, 64), (128,)))
    activation = {"linear_relu": F.relu, "linear_tanh_gelu": nn.GELU("tanh"), "linear_gelu": F.gelu}[name]
    want = activation(F.linear(x.double(), weight.double(), bias.double()))
    torch.testing.assert_close(getattr(epilogues, name)(x, weight, bias).double(), want, rtol=2e-2, atol=2e-2)


FACTS = {
    "gpu": True, "arch": "sm90", "mode": "infer", "dtype": "torch.bfloat16", "contiguous_convolutions": 3,
    "matches": {"activation-epilogue": 2, "gelu-epilogue": 2, "convolution-epilogue": 2},
}  # fmt: skip
PARTS = {"gemm": 50.0, "pointwise": 30.0, "convolution": 20.0}


@pytest.mark.parametrize(
    ("rung", "facts", "numerics", "plan", "why"),
    [
        ("activation-epilogue", {}, "exact", Plan(), ""),
        ("activation-epilogue", {"arch": "gfx942"}, "exact", Plan(), ""),
        ("activation-epilogue", {"gpu": False}, "exact", Plan(), "it is for GPUs"),
        ("activation-epilogue", {"mode": "train"}, "exact", Plan(), ""),
        ("activation-epilogue", {"mode": "train", "arch": "sm75"}, "exact", Plan(), "in training it is for NVIDIA"),
        ("gelu-epilogue", {"mode": "train", "arch": "gfx942"}, "bf16", Plan(), "in training it is for NVIDIA"),
        ("activation-epilogue", {"matches": {}}, "exact", Plan(), "no ReLU or GELU"),
        ("gelu-epilogue", {}, "bf16", Plan(), ""),
        ("gelu-epilogue", {}, "exact", Plan(), "allow it with --numerics bf16"),
        ("gelu-epilogue", {"dtype": "torch.float32"}, "bf16", Plan(), "nothing runs in bfloat16"),
        ("gelu-epilogue", {"dtype": "torch.float32"}, "bf16", Plan(bf16=True), ""),
        ("convolution-epilogue", {}, "exact", Plan(), "the layout that `channels-last` gives"),
        ("convolution-epilogue", {}, "exact", Plan(channels_last=True), ""),
        ("convolution-epilogue", {"contiguous_convolutions": 0}, "exact", Plan(), ""),
        ("convolution-epilogue", {"arch": "gfx942"}, "exact", Plan(channels_last=True), "sm80 and later"),
    ],
)  # fmt: skip
def test_when_they_apply(rung: str, facts: dict[str, Any], numerics: Any, plan: Plan, why: str) -> None:
    refused = BY_NAME[rung].applies(Context(plan, numerics, facts_of({**FACTS, **facts}), PARTS, {}))
    assert (why in str(refused)) if why else refused is None
