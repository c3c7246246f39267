"""Masks that a module keeps in a buffer: taken for what they hold, until somebody writes to them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rung
from rung.ladder.apply import Applied

LENGTH, TOKENS, WIDTH, HEADS = 16, 12, 32, 4


class Attention(nn.Module):
    """Attention by hand with its mask in a buffer, as long as the longest sequence."""

    def __init__(self, mask: torch.Tensor, writes: bool = False, learned: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.writes = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), writes
        if learned:
            self.mask = nn.Parameter(mask, requires_grad=False)
        else:
            self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        if self.writes:
            self.mask[0, 0] = 1
        q, k, v = (t.view(batch, tokens, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) / (width // HEADS) ** 0.5
        scores = scores.masked_fill(self.mask[:tokens, :tokens] == 0, float("-inf"))
        return self.out((F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def causal(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tril(torch.ones(LENGTH, LENGTH)).to(dtype)


def applied(**how: Any) -> tuple[Attention, Applied]:
    torch.manual_seed(0)
    model = Attention(how.pop("mask", causal()), **how)
    return model, rung.apply(model, ["sdpa"])


def masked(made: Applied) -> int:
    """SDPA calls with a mask tensor in the graphs that run."""
    surgeon = made._compiled.surgeon
    assert surgeon is not None
    assert surgeon.matches == {"sdpa": 1}
    return surgeon.after["masked_sdpa"]


def agrees(model: Attention, made: Applied) -> None:
    x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8, torch.bfloat16])
def test_a_causal_mask_in_a_buffer_is_no_mask_to_sdpa(dtype: torch.dtype) -> None:
    model, made = applied(mask=causal(dtype))
    agrees(model, made)
    assert masked(made) == 0


@pytest.mark.parametrize(
    "how", [{"mask": causal().T}, {"writes": True}, {"learned": True}], ids=lambda how: next(iter(how))
)
def test_what_is_not_causal_or_may_change_stays_a_mask(how: dict[str, Any]) -> None:
    model, made = applied(**how)
    agrees(model, made)
    assert masked(made) == 1


CHANGES: dict[str, Callable[[Attention], Any]] = {
    "written to": lambda m: m.mask[3].fill_(1),
    "replaced": lambda m: setattr(m, "mask", m.mask.clone().index_fill_(0, torch.tensor(3), 1)),
    "loaded": lambda m: m.load_state_dict({**m.state_dict(), "mask": torch.ones(LENGTH, LENGTH)}),
    "assigned": lambda m: m.load_state_dict({**m.state_dict(), "mask": torch.ones(LENGTH, LENGTH)}, assign=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_buffer_that_changes_is_a_mask_from_then_on(change: str) -> None:
    model, made = applied()
    agrees(model, made)
    before = model.mask.clone()
    CHANGES[change](model)
    agrees(model, made)
    assert masked(made) == 1
    model.mask.copy_(before)
    agrees(model, made)
    assert masked(made) == 1  # it changed once, and may again in every step


def test_a_buffer_that_is_written_with_what_it_holds_is_still_taken() -> None:
    model, made = applied()
    agrees(model, made)
    model.mask.copy_(causal())
    model.mask = model.mask.clone()
    assert not made._compiled.renewed()
    agrees(model, made)
    assert masked(made) == 0


def test_a_training_step_goes_on_when_a_mask_changes() -> None:
    def trained(rungs: list[str]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Attention(causal())
        made = rung.apply(
            model,
            rungs,
            loss=lambda output, batch: output.square().mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        )
        for k in range(6):
            if k == 3:
                model.mask[5].fill_(1)
            made.step(torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(k)))
        return [p.detach() for p in model.parameters()]

    for plain, fused in zip(trained([]), trained(["sdpa"]), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
