"""GELU between two layers that train: what is joined, what is left, and that results and all gradients are the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import rung
from rung.kernels import cublaslt
from rung.kernels.families import gelu
from rung.kernels.families.gelu import gelu_between, gelu_product
from rung.rewrites import RewriteBackend

Function = Callable[[torch.Tensor], torch.Tensor]
PASSES = ("activation-epilogue", "gelu-epilogue")
ON_NVIDIA = pytest.mark.skipif(not torch.cuda.is_available() or bool(torch.version.hip), reason="needs an NVIDIA GPU")


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it: its weight the other way, its rows flat."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) / 3), nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class FeedForward(nn.Module):
    """between: of what the first layer gives, to what the second reads."""

    def __init__(self, between: Function = F.gelu, layer: Any = nn.Linear, bias: bool = True, sizes: Any = (8, 16, 24)) -> None:  # fmt: skip
        super().__init__()
        inputs, inner, outputs = sizes
        self.norm, self.up, self.between = nn.LayerNorm(inputs), layer(inputs, inner), between
        self.down = layer(inner, outputs) if bias else nn.Linear(inner, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.between(self.up(self.norm(x))))


def trained(model: nn.Module, *, inner: Any = "eager", amp: bool = False, device: str = "cpu", passes: tuple[str, ...] = PASSES) -> RewriteBackend:  # fmt: skip
    """Compares the output and all gradients with those of the model as it is."""
    torch._dynamo.reset()
    backend = RewriteBackend(passes, inner)
    given = torch.randn(2, 3, 8, device=device)
    found = []
    for run in (model, torch.compile(model, backend=backend, dynamic=False)):
        model.zero_grad()
        x = given.clone().requires_grad_()
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            made = run(x)
        made.float().square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        found.append((made, x.grad, {name: grad.clone() for name, grad in gradients.items() if grad is not None}))
    near = {"rtol": 3e-2, "atol": 3e-2 * float(found[0][1].abs().max())} if amp else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found[1], found[0], **near)
    return backend


FOUND: dict[str, tuple[Function, str]] = {
    "gelu": (F.gelu, "gelu-epilogue"),
    "gelu with tanh": (nn.GELU("tanh"), "activation-epilogue"),
    "by hand": (lambda x: x * 0.5 * (1.0 + torch.erf(x / 2**0.5)), "gelu-epilogue"),
    "dropout that is off": (lambda x: F.dropout(F.gelu(x), 0.0), "gelu-epilogue"),
    "in float32": (lambda x: F.gelu(x.float()).to(x.dtype), "gelu-epilogue"),
    "of a view": (lambda x: F.gelu(x.view(-1, 16)).view(x.shape), "gelu-epilogue"),
}


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("layer", [nn.Linear, Conv1D])
@pytest.mark.parametrize("name", FOUND)
def test_both_layers_and_gelu_are_one_call(name: str, layer: Any, amp: bool) -> None:
    between, which = FOUND[name]
    assert trained(FeedForward(between, layer), amp=amp).rewritten == {which: 1}


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_compiled_by_inductor_it_is_the_same(bias: bool, amp: bool) -> None:
    assert trained(FeedForward(bias=bias), inner="inductor", amp=amp).rewritten == {"gelu-epilogue": 1}


@pytest.mark.parametrize("frozen", ["up.weight", "up.bias", "down.weight", "down.bias", "down"])
def test_what_is_frozen_has_no_gradient(frozen: str) -> None:
    model = FeedForward()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    assert trained(model, inner="inductor", amp=True).rewritten == {"gelu-epilogue": 1}


def test_a_checkpoint_computes_it_again() -> None:
    class Checkpointed(FeedForward):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    assert trained(Checkpointed(), inner="inductor", amp=True).rewritten == {"gelu-epilogue": 1}


def test_forward_mode_runs_without_it() -> None:
    model = FeedForward().bfloat16()
    x = torch.randn(2, 3, 8).bfloat16()
    fast = rung.apply(model, ["gelu-epilogue"])
    fast(x.clone().requires_grad_()).sum().backward()
    derived = []
    for run in (fast, model):
        with forward_ad.dual_level():
            derived.append(forward_ad.unpack_dual(run(forward_ad.make_dual(x, torch.ones_like(x)))))
        derived.append(torch.func.jvp(run, (x,), (torch.ones_like(x),)))
    assert all(map(torch.equal, derived[0], derived[2]))
    assert all(map(torch.equal, derived[1], derived[3]))


def test_forward_mode_is_refused_in_a_sentence() -> None:
    x, up, up_bias, down = (torch.randn(*size, requires_grad=True) for size in ((4, 8), (16, 8), (16,), (8, 16)))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=r"no forward-mode derivative; .* without it"):
        gelu_between(forward_ad.make_dual(x, torch.ones_like(x)), up, up_bias, down)


def test_one_row_has_no_other_dimension() -> None:
    class Single(FeedForward):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[0, 0])

    assert trained(Single(), amp=True).rewritten == {"gelu-epilogue": 1}


class Written(FeedForward):
    def __init__(self) -> None:
        super().__init__()
        self.up.weight.requires_grad_(False)  # else its gradient is of what was there before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x) * 1.0
        inner = F.gelu(self.up(normed.detach()))
        normed.mul_(2.0)
        return self.down(inner) + normed.sum()


class Switched(FeedForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            inner = F.gelu(self.up(self.norm(x)))
        with torch.autocast("cpu", torch.bfloat16):
            return self.down(inner)


@pytest.mark.parametrize("layer", [nn.Linear, Conv1D])
def test_its_products_are_counted_as_before(layer: Any) -> None:
    backend = trained(FeedForward(layer=layer), amp=True)
    names = ("gemm", "layer_flop", "gemm_flop", "unaligned_flop")
    assert [backend.after[name] for name in names] == [backend.before[name] for name in names]
    assert backend.before["gemm_flop"] == 2 * 6 * (8 * 16 + 16 * 24)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_what_no_gradient_reads_may_be_written_to_and_is_not_kept(inner: str) -> None:
    class WrittenAfter(FeedForward):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            read = self.norm(x).bfloat16() * 1.0
            made = self.down(F.gelu(self.up(read)))
            read.mul_(2.0)
            return made + 0.0 * read.sum()

    model = WrittenAfter()
    model.up.weight.requires_grad_(False)
    assert trained(model, inner=inner, amp=True).rewritten == {"gelu-epilogue": 1}


@pytest.mark.parametrize(("learns", "count"), [("x", 3), ("up", 3), ("up_bias", 2), ("down", 1), ("down_bias", 0)])
def test_only_what_a_gradient_reads_is_kept(learns: str, count: int) -> None:
    sizes = {"x": (4, 8), "up": (16, 8), "up_bias": (16,), "down": (24, 16), "down_bias": (24,)}
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        gelu_between(**{name: torch.randn(*size, requires_grad=name == learns) for name, size in sizes.items()})
    assert len(kept) == count


class Narrowed(FeedForward):
    """What is computed in float64 is rounded to float32 for GELU."""

    def __init__(self) -> None:
        super().__init__(lambda x: F.gelu(x.float()).double())
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double())


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "ReLU": (lambda: FeedForward(F.relu), "no epilogue"),
    "dropout": (lambda: FeedForward(lambda x: F.dropout(F.gelu(x), 0.5) * 0.0), "not one linear layer"),
    "read twice": (lambda: FeedForward(lambda x: (y := F.gelu(x)) + y.flip(-1)), "not one linear layer"),
    "other rows": (lambda: FeedForward(lambda x: F.gelu(x).flip(0)), "not one linear layer"),
    "an inner size": (lambda: FeedForward(sizes=(8, 12, 8)), "no multiple of 8"),
    "an outer size": (lambda: FeedForward(sizes=(8, 16, 7)), "no multiple of 8"),
    "rounded in between": (lambda: FeedForward(lambda x: F.gelu(x).half().to(x.dtype)), "not one linear layer"),
    "read as another dtype": (
        lambda: FeedForward(lambda x: F.gelu(x).view(torch.int32).view(torch.float32)),
        "not one linear layer",
    ),
    "rounded before": (Narrowed, ""),
    "its input is written to": (Written, "written to before the second"),
    "autocast ends in between": (Switched, "autocast"),
}


@pytest.mark.parametrize("name", LEFT)
def test_anything_else_is_left_with_a_reason(name: str) -> None:
    make, why = LEFT[name]
    backend = trained(make(), amp=name.startswith("autocast"))
    assert not backend.rewritten
    assert why in " ".join(backend.skipped)


@pytest.mark.parametrize(
    "transform",
    [lambda f: torch.func.vmap(f), lambda f: torch.func.jacrev(lambda x: f(x).sum((0, 1)))],
    ids=["vmap", "jacrev"],
)
@pytest.mark.parametrize("between", [F.gelu, F.relu])
def test_what_torch_func_transforms_is_left(between: Function, transform: Any) -> None:
    """Its values say nothing of what needs a gradient, and the functions have no rules for it."""
    torch._dynamo.reset()
    model = FeedForward(between).bfloat16()
    model.norm = nn.Identity()  # type: ignore[assignment]  # a norm is not traced within `vmap`
    x, backend = torch.randn(4, 3, 8).bfloat16(), RewriteBackend(PASSES, "eager")

    def run(x: torch.Tensor) -> torch.Tensor:
        return transform(model)(x)

    torch.testing.assert_close(torch.compile(run, backend=backend, dynamic=False)(x), run(x))
    assert not backend.rewritten
    assert all(
        "torch.func" in reason for reason in backend.skipped
    )  # torch 2.6 leaves no activation in a graph of `vmap`


def test_there_is_no_second_derivative() -> None:
    tensors = [torch.randn(*size, requires_grad=True) for size in ((4, 8), (16, 8), (16,), (8, 16), (8,))]
    (slope,) = torch.autograd.grad(gelu_between(*tensors).sum(), tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no gradient of its own"):
        slope.sum().backward()


def derived(function: Any, tensors: list[torch.Tensor], slope: torch.Tensor) -> list[torch.Tensor]:
    leaves = [each.detach().requires_grad_() for each in tensors]
    made = function(*leaves)
    return [made, *torch.autograd.grad(made, leaves, slope.to(made.dtype))]


def reference(x: torch.Tensor, up: torch.Tensor, up_bias: torch.Tensor, down: torch.Tensor, down_bias: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh"), down, down_bias)


@ON_NVIDIA
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 300),
    sizes=st.tuples(*[st.integers(1, 24).map(lambda n: 8 * n)] * 3),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    turned=st.tuples(*[st.booleans()] * 4),
)
def test_the_library_is_as_near_to_float64_as_torch(rows: int, sizes: Any, dtype: torch.dtype, turned: Any) -> None:
    """turned: whether a matrix lies by columns: x, both weights, and the slope that comes back."""
    inputs, inner, outputs = sizes

    def matrix(m: int, n: int, by_columns: bool) -> torch.Tensor:
        return torch.randn(n, m, device="cuda").t().to(dtype) if by_columns else torch.randn(m, n, device="cuda").to(dtype)  # fmt: skip

    x, up, down, slope = (
        matrix(*shape, by_columns)
        for shape, by_columns in zip(((rows, inputs), (inner, inputs), (outputs, inner), (rows, outputs)), turned, strict=True)
    )  # fmt: skip
    up, down = up / inputs**0.5, down / inner**0.5
    tensors = [x, up, torch.randn(inner, device="cuda").to(dtype), down, torch.randn(outputs, device="cuda").to(dtype)]
    truth = derived(reference, [each.double() for each in tensors], slope)
    ours, torchs = (derived(function, tensors, slope) for function in (gelu_between, reference))
    for got, other, right in zip(ours, torchs, truth, strict=True):
        off, allowed = ((each.double() - right).norm() for each in (got, other))
        assert off <= 1.5 * allowed + 1e-4 * right.norm()


@pytest.mark.parametrize(
    ("size", "stride", "fits"),
    [
        ((6, 8), (8, 1), True), ((6, 8), (1, 6), True), ((6, 8), (11, 1), True), ((1, 8), (3, 1), True), ((6, 1), (1, 9), True),
        ((6, 8), (0, 1), False), ((6, 8), (1, 0), False), ((6, 8), (2, 1), False), ((6, 8), (1, 2), False), ((1, 8), (1, 0), False),
    ],
)  # fmt: skip
def test_the_library_reads_a_matrix_as_it_lies_or_not_at_all(size: Any, stride: Any, fits: bool) -> None:
    """Rows of one gradient, as of a sum, are broadcast; frames of a signal overlap: the library would read what lies behind them."""
    matrix = torch.arange(99.0).as_strided(size, stride)
    assert cublaslt.in_lines(matrix) == fits
    by_columns, step = cublaslt._lines(matrix if fits else gelu._in_lines(matrix))
    strides = (1, step) if by_columns else (step, 1)
    torch.testing.assert_close((matrix if fits else gelu._in_lines(matrix)).as_strided(size, strides), matrix)


def test_the_library_is_given_one_dtype_and_what_is_contiguous() -> None:
    def takes(**others: torch.Tensor) -> bool:
        sizes = {"left": (4, 16), "right": (16, 8), "out": (4, 8), "aux": (4, 8), "bias": (8,)}
        given = {name: torch.zeros(*size, dtype=torch.bfloat16) for name, size in sizes.items()}
        return cublaslt.readable(**{**given, **others})

    assert takes()
    half = torch.zeros(2, 16, dtype=torch.bfloat16)
    wrong = {"left": half, "right": torch.zeros(16, 8), "aux": half.view(8, 4).t(), "bias": half.view(-1)[::4]}
    assert not any(takes(**{name: tensor}) for name, tensor in wrong.items())


@ON_NVIDIA
def test_what_is_broadcast_or_overlaps_or_has_gaps_is_read_as_it_is() -> None:
    def on(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16)

    up, down, frames, row, bias = on(16, 8) / 3, on(24, 16) / 4, on(80).unfold(0, 8, 2), on(8).expand(5, 8), on(32)[::2]
    for x in (frames, row):
        slope = on(len(x))[:, None].expand(-1, 24)
        tensors = [x, up, bias, down, on(24)]
        leaves = [[each.detach().requires_grad_() for each in tensors] for _ in range(2)]
        made = [function(*given) for function, given in zip((gelu_between, reference), leaves, strict=True)]
        found = [torch.autograd.grad(each, given, slope) for each, given in zip(made, leaves, strict=True)]
        torch.testing.assert_close(*made, rtol=3e-2, atol=3e-2)
        torch.testing.assert_close(*found, rtol=3e-2, atol=3e-1)


@ON_NVIDIA
def test_the_library_has_these_products_and_says_what_it_has_not() -> None:
    x, weight, bias = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((64, 32), (48, 32), (48,)))
    made, product = torch.empty(2, 64, 48, device="cuda", dtype=torch.bfloat16)
    assert cublaslt.multiply(x, weight.t(), made, cublaslt.GELU_AUX_BIAS, product, bias)
    assert cublaslt.multiply(x, weight.t(), made, cublaslt.DGELU, product)
    odd = torch.full((64, 47), torch.nan, device="cuda", dtype=torch.bfloat16)
    assert not cublaslt.multiply(x, weight[:47].t(), odd, cublaslt.DGELU, odd)
    assert odd.isnan().all()
    wide = torch.empty(64, 48, device="cuda")
    assert not cublaslt.multiply(x.float(), weight.float().t(), wide, cublaslt.DGELU, wide)


@ON_NVIDIA
def test_it_is_recorded_in_a_graph_also_where_nothing_was_timed_before() -> None:
    x, weight, bias = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((72, 40), (56, 40), (56,)))
    want = gelu_product(x, weight, bias)
    cublaslt._product.cache_clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gelu_product(x, weight, bias)
    graph.replay()
    torch.testing.assert_close(got, want)


@ON_NVIDIA
@pytest.mark.parametrize("layer", [nn.Linear, Conv1D])
def test_a_model_on_a_gpu_trains_alike(layer: Any) -> None:
    assert trained(FeedForward(layer=layer).cuda(), inner="inductor", amp=True, device="cuda").rewritten == {"gelu-epilogue": 1}  # fmt: skip
