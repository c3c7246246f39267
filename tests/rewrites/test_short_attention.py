"""SDPA over few queries and keys asks the memory-efficient kernel first, for that call alone; longer ones are left."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch import nn
from torch.nn.attention import SDPBackend

from rung.plan import Plan
from rung.rewrites import PASSES, RewriteBackend
from rung.rewrites.attention import short
from rung.rungs import BY_NAME, Context, plan_of

EFFICIENT = int(SDPBackend.EFFICIENT_ATTENTION)


def order() -> list[int]:
    return list(torch._C._get_sdp_priority_order())


class Windows(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.qkv, self.options = nn.Linear(16, 48), options

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, mask, **self.options).transpose(1, 2).flatten(2)


def captured(model: nn.Module, *inputs: torch.Tensor) -> RewriteBackend:
    torch._dynamo.reset()
    backend = RewriteBackend(["short-attention"], "eager")
    run = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    want, got = model(*inputs), run(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    slopes = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (want, got)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
    return backend


@pytest.mark.parametrize(
    ("masked", "options"),
    [("", {}), ("added", {}), ("seen", {}), ("", {"scale": 0.3}), ("added", {"scale": 0.3}), ("", {"is_causal": True})],
)
def test_a_short_call_keeps_its_mask_and_its_options(masked: str, options: dict[str, object]) -> None:
    mask = {"": None, "added": torch.randn(1, 2, 9, 9), "seen": torch.rand(3, 1, 9, 9) > 0.3}[masked]
    inputs = [torch.randn(3, 9, 16), *([mask] if mask is not None else [])]
    assert captured(Windows(**options), *inputs).matches == {"short-attention": 1}


@pytest.mark.parametrize(
    ("length", "why"), [(short.LONGEST, ""), (short.LONGEST + 1, "65 queries and 65 keys"), (1, "1 queries and 1 keys")]
)
def test_others_are_left_with_a_reason(length: int, why: str) -> None:
    backend = captured(Windows(), torch.randn(2, length, 16))
    assert bool(backend.rewritten) == (not why)
    assert why in "".join(backend.skipped)


def test_those_that_are_written_by_hand_are_calls_first() -> None:
    assert plan_of(["short-attention"]).passes == ("sdpa", "short-attention")


def test_it_is_found_where_all_rewrites_are_looked_for() -> None:
    """FlexAttention takes such a call, too, and the survey runs all of them."""
    torch._dynamo.reset()
    q = torch.randn(2, 2, 9, 16)
    backend = RewriteBackend(PASSES, "eager")
    torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q) * 1, backend=backend, dynamic=False)(q)
    assert backend.rewritten == {"short-attention": 1, "flex-for-sdpa": 1}


def test_a_copy_in_front_of_it_goes_all_the_same() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(1, 2).contiguous() for part in x.view(2, 9, 3, 2, 8).unbind(2))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 9, 16)

    torch._dynamo.reset()
    backend, x = RewriteBackend(["short-attention", "strided-sdpa-inputs"], "eager"), torch.randn(2, 9, 48)
    torch.testing.assert_close(torch.compile(call, backend=backend, dynamic=False)(x), call(x))
    assert backend.matches == {"short-attention": 1, "strided-sdpa-inputs": 3}


class Returned(Windows):
    """Its result as it is, or what code behind a graph break makes of it."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, mask)
        if self.apart:
            torch._dynamo.graph_break()
            return found.transpose(1, 2).view(*x.shape[:2], 16)
        return found


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_result_that_the_graph_returns_lies_as_it_did(inner: Any, apart: bool) -> None:
    torch._dynamo.reset()
    model, x = Returned(apart), torch.randn(2, 9, 16)
    backend = RewriteBackend(["short-attention"], inner)
    with torch.no_grad():
        got, want = torch.compile(model, backend=backend, dynamic=False)(x), model(x)
    assert backend.rewritten
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


def test_its_kernel_is_asked_first_in_that_call_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, right, before = [], F.scaled_dot_product_attention, order()
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: asked.append(order()) or right(*a, **k))
    q = torch.randn(1, 2, 4, 8)
    torch.testing.assert_close(short.short_attention(q, q, q), right(q, q, q))
    assert asked[0][0] == EFFICIENT
    assert order() == before


@pytest.mark.parametrize("off", [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION])
def test_a_kernel_that_is_switched_off_is_not_asked(off: SDPBackend) -> None:
    on = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    on.remove(off)
    with torch.nn.attention.sdpa_kernel(on):
        assert short.first(SDPBackend.EFFICIENT_ATTENTION) == on


def test_a_call_that_the_model_gives_to_one_kernel_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Windows):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):
                return super().forward(x, mask)

    found = []
    right = short.first
    monkeypatch.setattr(short, "first", lambda kind: found.append(right(kind)) or found[-1])
    captured(Told(), torch.randn(2, 9, 16))
    assert found == [[SDPBackend.MATH]]


FACTS = {
    "gpu": True, "arch": "sm90", "mode": "infer", "dtype": "torch.bfloat16", "matches": {"short-attention": 2},
    "attention_choices": {"default": "CUDNN_ATTENTION", "cudnn first": "CUDNN_ATTENTION"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, ""),
        ({"attention_choices": {"default": "FLASH_ATTENTION"}}, "torch does not ask cuDNN"),
        ({"attention_choices": {}}, "cannot be told an order"),
        ({"dtype": "torch.float32"}, "in float32 torch takes"),
        ({"matches": {}}, "no attention over at most 64"),
    ],
)
def test_it_applies_where_cudnn_would_be_asked(facts: dict[str, object], why: str) -> None:
    context = Context(Plan(), "bf16", facts_of({**FACTS, **facts}), {"attention": 50.0, "gemm": 50.0}, {})
    refused = BY_NAME["short-attention"].applies(context)
    assert (why in str(refused)) if why else refused is None
