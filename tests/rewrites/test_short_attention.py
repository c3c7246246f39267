"""SDPA over few queries and keys asks the memory-efficient kernel first, for that call alone; longer ones are left."""

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch import nn
from torch.nn.attention import SDPBackend

from rung.plan import Plan
from rung.rewrites import Surgeon
from rung.rewrites.attention import short
from rung.rungs import BY_NAME, Context

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


def captured(model: nn.Module, *inputs: torch.Tensor) -> Surgeon:
    torch._dynamo.reset()
    surgeon = Surgeon(["short-attention"], "eager")
    run = torch.compile(model, backend=surgeon, dynamic=False, fullgraph=True)
    want, got = model(*inputs), run(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    slopes = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (want, got)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
    return surgeon


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
    surgeon = captured(Windows(), torch.randn(2, length, 16))
    assert bool(surgeon.rewritten) == (not why)
    assert why in "".join(surgeon.skipped)


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
        ({"dtype": "torch.float32"}, "in float32 torch takes"),
        ({"matches": {}}, "no attention over at most 64"),
    ],
)
def test_it_applies_where_cudnn_would_be_asked(facts: dict[str, object], why: str) -> None:
    context = Context(Plan(), "bf16", facts_of({**FACTS, **facts}), {"attention": 50.0, "gemm": 50.0}, {})
    refused = BY_NAME["short-attention"].applies(context)
    assert (why in str(refused)) if why else refused is None
