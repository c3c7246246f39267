"""SDPA calls with an added bias become calls of the kernel, in 16 bits: by plain PyTorch here, and once by itself."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from rung import kernels
from rung.kernels import reference
from rung.kernels.configs import WIDEST
from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites.graph import kernel_ops
from rung.rungs import BY_NAME, Context, plan_of

BATCH, HEADS, QUERIES, KEYS, WIDTH = 4, 2, 9, 12, 8
told: list[tuple[Any, ...]] = []


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    if not torch.compiler.is_compiling():
        lowest = float(bias[bias > -torch.inf].min())
        told.append((tuple(bias.shape), bias.dtype, round(scale, 4), lowest, int((bias == -torch.inf).sum())))
    assert (seed is None) == (not dropout_p)
    made = reference.biased_attention(q, k, v, bias, scale, dropout_p=dropout_p, seed=seed)
    return made.transpose(1, 2).contiguous().transpose(1, 2), None


plain.namespace = "rung"  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _as_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    told.clear()
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", {"biased_attention": plain}.__getitem__)


class Attention(nn.Module):
    """call: of queries, keys, values and the bias."""

    def __init__(self, call: Callable[..., torch.Tensor], *bias: int, width: int = WIDTH) -> None:
        super().__init__()
        self.call, self.bias = call, nn.Parameter(torch.randn(*bias))
        self.q, self.k, self.v = (nn.Linear(4, HEADS * width) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(each).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, each in ((self.q, x), (self.k, y), (self.v, y))
        )
        return self.call(q, k, v, self.bias).transpose(1, 2).flatten(2)


def sdpa(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias, **options)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * 0.3 + bias).softmax(-1) @ v


def check(model: nn.Module, passes: tuple[str, ...] = ("sdpa", "biased-attention"), amp: bool = True, trains: bool = True, dtype: torch.dtype = torch.float32) -> RewriteBackend:  # fmt: skip
    backend = RewriteBackend(list(passes), "eager")
    run = torch.compile(model.to(dtype), backend=backend, dynamic=False)
    inputs = torch.randn(BATCH, QUERIES, 4, dtype=dtype), torch.randn(BATCH, KEYS, 4, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp), torch.set_grad_enabled(trains):
        want, got = model(*inputs), run(*inputs)
    near = {"rtol": 3e-2, "atol": 3e-2} if amp else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, want, **near)
    assert got.stride() == want.stride()
    if trains:
        slope = torch.randn_like(want)
        gradients = [torch.autograd.grad(made, list(model.parameters()), slope) for made in (got, want)]
        scale = 1 + float(max(each.abs().max() for each in gradients[1]))
        torch.testing.assert_close(*gradients, rtol=near["rtol"], atol=near["atol"] * scale)
    return backend


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(
    "bias",
    [(1, HEADS, QUERIES, KEYS), (BATCH, HEADS, QUERIES, KEYS), (BATCH, 1, QUERIES, KEYS), (HEADS, QUERIES, KEYS), (QUERIES, KEYS)],
)  # fmt: skip
def test_a_call_with_a_bias_is_one_of_the_kernel(bias: tuple[int, ...], trains: bool) -> None:
    assert check(Attention(sdpa(scale=0.3), *bias), trains=trains).rewritten == {"biased-attention": 1}
    assert told[0][:3] == ((1,) * (4 - len(bias)) + bias, torch.bfloat16, 0.3)
    assert len(told) == 1


def test_rows_of_the_lowest_number_are_a_mean_of_the_values_also_for_the_kernel() -> None:
    """Times log2(e), the lowest number is infinite: kernels would take such rows for empty ones."""
    model = Attention(sdpa(), 1, HEADS, QUERIES, KEYS)
    with torch.no_grad():
        model.bias[..., 0, :] = torch.finfo(torch.bfloat16).min
        model.bias[..., 1, 3:] = -torch.inf
    check(model, trains=False)
    lowest, hidden = told[0][3:]
    assert lowest * 1.4427 > torch.finfo(torch.bfloat16).min
    assert hidden == HEADS * (KEYS - 3)


def test_one_that_is_written_by_hand_is_a_call_first() -> None:
    assert plan_of(["biased-attention"]).passes == ("sdpa", "biased-attention")
    found = check(Attention(by_hand, 1, HEADS, QUERIES, KEYS)).rewritten
    assert found == {"sdpa": 1, "biased-attention": 1}


@pytest.mark.parametrize(("dtype", "kernels"), [(torch.float32, 1), (torch.float64, 0)])
def test_full_precision_is_verified_of_the_kernel_and_float64_stays_torchs(dtype: torch.dtype, kernels: int) -> None:
    model = Attention(sdpa(), 1, HEADS, QUERIES, KEYS)
    assert check(model, amp=False, dtype=dtype).rewritten == {"biased-attention": 1}
    assert len(told) == kernels


def test_short_attention_leaves_what_it_took() -> None:
    passes = ("biased-attention", "short-attention")
    assert check(Attention(sdpa(), 1, HEADS, QUERIES, KEYS), passes).rewritten == {"biased-attention": 1}


WHOLE = (1, HEADS, QUERIES, KEYS)


def dropped_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT * 0.3 + bias).float().softmax(-1).type_as(q)  # as T5 has it
    return F.dropout(weights, p=0.5, training=True) @ v


@pytest.mark.parametrize("call", [sdpa(dropout_p=0.5), dropped_by_hand], ids=["sdpa", "by hand"])
def test_dropout_is_of_the_same_distribution(call: Callable[..., torch.Tensor]) -> None:
    """Mean and scatter of many results, and of a gradient, beside torch's."""
    shapes = (QUERIES, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH), (QUERIES, KEYS)
    inputs = [torch.randn(1, HEADS, *shape).bfloat16() for shape in shapes]
    inputs = [x.expand(400, -1, -1, -1).contiguous().requires_grad_() for x in inputs]  # so many results at once
    backend = RewriteBackend(["sdpa", "biased-attention"], "eager")
    run = torch.compile(lambda *given: call(*given), backend=backend, dynamic=False)
    slope = torch.randn(1, HEADS, QUERIES, WIDTH).bfloat16().expand(400, -1, -1, -1)
    want, got = ([out, *torch.autograd.grad(out, inputs, slope)] for out in (call(*inputs), run(*inputs)))
    assert backend.rewritten["biased-attention"] == 1
    for a, b in zip(want, got, strict=True):
        a, b = a.float(), b.float()
        off = (a.mean(0) - b.mean(0)) / ((a.var(0) + b.var(0)) / len(a) + 1e-9).sqrt()
        assert off.abs().max() < 5
        torch.testing.assert_close(b.std(0).mean(), a.std(0).mean(), rtol=0.03, atol=0)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize(("inner", "kernel"), [("eager", False), ("inductor", True)], ids=["eager", "inductor"])
def test_gradients_are_of_the_mask_of_the_forward_pass(
    inner: str, checkpointed: bool, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are linear in the values: the products of values and gradients, and of results and slopes, have one sum. Each layer and
    each step has a mask of its own; torch's seed determines all."""
    if kernel:
        if not kernels.available():
            pytest.skip("Triton is not installed")
        monkeypatch.undo()  # a GPU runs it, or the interpreter
    device = "cuda" if kernel and torch.cuda.is_available() else "cpu"
    call = sdpa(dropout_p=0.5)

    def layer(*inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(call, *inputs, use_reentrant=False) if checkpointed else call(*inputs)

    def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        return [layer(q, k, each, bias) for each in v.unbind()]

    shapes = (QUERIES, WIDTH), (KEYS, WIDTH), (QUERIES, KEYS)
    q, k, bias = (torch.randn(BATCH, HEADS, *shape, device=device).bfloat16().requires_grad_() for shape in shapes)
    v = torch.randn(1, BATCH, HEADS, KEYS, WIDTH, device=device).bfloat16()
    v = v.expand(2, -1, -1, -1, -1).contiguous().requires_grad_()
    backend = RewriteBackend(["biased-attention"], inner)
    run = torch.compile(layers, backend=backend, dynamic=False, fullgraph=True)

    def steps() -> list[torch.Tensor]:
        torch.manual_seed(3)
        seen = []
        for _ in range(2):
            made = run(q, k, v, bias)
            gradients = torch.autograd.grad(made, (v, q, k, bias), made)
            for out, value, gradient in zip(made, v, gradients[0], strict=True):
                energy = out.double().square().sum()
                torch.testing.assert_close((value.double() * gradient.double()).sum(), energy, rtol=0.02, atol=0)
            seen += made
        return seen

    seen = steps()
    assert backend.rewritten == {"biased-attention": 2}
    for a, b in itertools.combinations(seen, 2):
        assert (a - b).abs().mean() > 0.1 * a.abs().mean()
    for a, b in zip(seen, steps(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
def test_compiled_code_of_another_version_is_not_taken_from_the_cache(
    checkpointed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a function that has the same name."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    call = sdpa()

    def layer(*inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(call, *inputs, use_reentrant=False) if checkpointed else call(*inputs)

    shapes = (QUERIES, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH), (QUERIES, KEYS)
    inputs = [torch.randn(BATCH, HEADS, *shape).requires_grad_() for shape in shapes]
    for version in (1.0, 2.0):
        monkeypatch.setattr(
            "rung.rewrites.graph.kernel_ops.operator",
            lambda name, factor=version: lambda *given: (factor * reference.biased_attention(*given[:5]), None),
        )
        torch._dynamo.reset()
        made = torch.compile(layer, backend=RewriteBackend(["biased-attention"]), dynamic=False)(*inputs)
        torch.autograd.grad(made.sum(), inputs)  # then it is written to the cache
        torch.testing.assert_close(made, version * layer(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: Attention(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v), *WHOLE), ""),
        (lambda: Attention(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias > 0), *WHOLE), ""),
        (lambda: Attention(sdpa(), BATCH, 1, 1, KEYS), "one row for all queries"),
        (lambda: Attention(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias.expand(1, 1, QUERIES, KEYS)), KEYS), "one row"),
        (lambda: Attention(sdpa(), *WHOLE, width=2 * WIDEST), f"the kernel takes up to {WIDEST}"),
    ],
    ids=["no mask", "truths", "of keys", "expanded", "wide"],
)  # fmt: skip
def test_others_are_left_with_a_reason(model: Callable[[], nn.Module], why: str) -> None:
    backend = RewriteBackend(["biased-attention"], "eager")
    made = model()
    torch.compile(made, backend=backend, dynamic=False)(torch.randn(BATCH, QUERIES, 4), torch.randn(BATCH, KEYS, 4))
    assert not backend.rewritten
    assert (why in backend.skipped[0]) if why else not backend.skipped


def test_a_bias_that_offsets_of_32_bits_do_not_reach_is_left_with_a_reason() -> None:
    backend = RewriteBackend(["biased-attention"], "eager")
    q, bias = torch.empty(1, 1, 50000, 8, device="meta"), torch.empty(1, 1, 50000, 50000, device="meta")
    torch.compile(sdpa(), backend=backend, dynamic=False)(q, q, q, bias)
    assert not backend.rewritten
    assert "too large for offsets of 32 bits" in backend.skipped[0]


@pytest.mark.parametrize(
    ("facts", "plan", "why"),
    [
        ({}, Plan(compile=True), ""),
        ({"dtype": "torch.float32"}, Plan(compile=True), "nothing runs in 16 bits"),
        ({"dtype": "torch.float32"}, Plan(compile=True, bf16=True), ""),
        ({}, Plan(), "it needs torch.compile"),
        ({"matches": {}}, Plan(compile=True), "no attention with a bias"),
    ],
)
def test_when_it_applies(facts: dict[str, Any], plan: Plan, why: str) -> None:
    known = {"gpu": True, "arch": "gfx942", "mode": "train", "dtype": "torch.bfloat16", "matches": {"biased-attention": 3}}  # fmt: skip
    refused = BY_NAME["biased-attention"].applies(
        Context(plan, "bf16", facts_of({**known, **facts}), {"attention": 9.0}, {})
    )
    assert (why in str(refused)) if why else refused is None
