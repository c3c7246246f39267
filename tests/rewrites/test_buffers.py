"""Masks that a module keeps in a buffer: taken for what they hold, until somebody writes to them."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rung
from rung.recipes.applied import Applied
from rung.rewrites import RewriteBackend
from rung.rewrites.graph import buffers

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
    backend = made._compiled.backend
    assert backend is not None
    assert backend.matches == {"sdpa": 1}
    return backend.after["masked_sdpa"]


def outdated(made: Applied) -> bool:
    """What is asked before a recorded call."""
    assert made._compiled.backend is not None
    return made._compiled.backend.outdated()


def agrees(model: nn.Module, made: Applied) -> None:
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
def test_a_buffer_that_changes_is_a_mask_as_long_as_it_is_another(change: str) -> None:
    model, made = applied()
    agrees(model, made)
    before = model.mask.clone()
    CHANGES[change](model)
    agrees(model, made)
    assert masked(made) == 1
    model.mask.copy_(before)
    agrees(model, made)


def test_a_buffer_that_is_written_with_what_it_holds_is_still_taken() -> None:
    model, made = applied()
    agrees(model, made)
    model.mask.copy_(causal())
    assert not outdated(made)
    model.mask = model.mask.clone()
    agrees(model, made)
    assert masked(made) == 0


def test_what_was_recorded_is_told_once_that_a_buffer_was_written_to() -> None:
    model, made = applied()
    agrees(model, made)
    model.mask[3].fill_(1)
    assert [outdated(made), outdated(made)] == [True, False]


def test_a_buffer_that_is_written_to_in_every_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MOST_ASKED", 3)
    model, made = applied()
    for _ in range(6):
        model.mask.copy_(causal())
        agrees(model, made)
    assert masked(made) == 1


class Biased(nn.Module):
    """Attention whose bias, a buffer, may be anything that another module made."""

    def __init__(self, bias: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ x.transpose(-2, -1) + self.bias, dim=-1) @ x


class Annealed(nn.Module):
    """Attention whose temperature, a buffer, each call lowers before it reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.temperature.mul_(0.9)
        return F.softmax(x @ x.transpose(-2, -1) / self.temperature, dim=-1) @ x


def test_a_buffer_that_the_graph_writes_to_is_left_as_it_was_and_read_at_every_call() -> None:
    ours, theirs = Annealed(), Annealed()
    made = torch.compile(ours, backend=RewriteBackend(["sdpa"], "eager"), dynamic=False)
    x = torch.randn(2, HEADS, TOKENS, 8)
    for _ in range(3):
        torch.testing.assert_close(made(x), theirs(x))
        assert ours.temperature == theirs.temperature


@pytest.mark.parametrize("made", [False, True], ids=["a leaf", "made of a parameter"])
def test_a_buffer_that_needs_a_gradient_gets_it(made: bool) -> None:
    gradients = []
    for rungs in ([], ["sdpa"]):
        torch.manual_seed(0)
        source = torch.zeros(TOKENS, TOKENS, requires_grad=True)
        model = Biased(source * 1.0 if made else source)
        rung.apply(model, rungs)(torch.randn(2, HEADS, TOKENS, 8)).square().sum().backward()
        gradients.append(source.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rungs", [["compile-regions", "sdpa"], ["sdpa"]], ids=lambda rungs: rungs[0])
@pytest.mark.parametrize("equal", [True, False])
def test_one_graph_for_several_modules_asks_each_ones_mask(
    rungs: list[str], equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo compiles blocks of the same code once, and tells their buffers apart by nothing."""
    monkeypatch.setattr(RewriteBackend, "compiled", lambda backend, gm, inputs: gm.forward)
    torch.manual_seed(0)
    local = causal() * torch.triu(torch.ones(LENGTH, LENGTH), -2)
    model = nn.Sequential(*(Attention(causal() if equal or k % 2 else local.clone()) for k in range(4)))
    if rungs == ["sdpa"]:
        for block in model:
            block.register_forward_pre_hook(torch._dynamo.disable(lambda module, given: None))  # a break before each
    made = rung.apply(model, rungs)
    agrees(model, made)
    with torch.no_grad():
        model[2].mask.fill_(1)
    agrees(model, made)


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


class Cached(nn.Module):
    """A mask, which a rewrite looks at, and a cache that is made anew for each size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(causal())

    def new(self, batch: int) -> None:
        self.register_buffer("cache", torch.zeros(batch, 1, WIDTH), persistent=False)
        self.attention.mask = causal()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x) + self.cache


def test_buffers_that_the_model_replaced_are_freed() -> None:
    model = Cached().requires_grad_(False)
    backend = RewriteBackend(["sdpa"], "eager")
    compiled = torch.compile(model, backend=backend, dynamic=False)
    caches, masks = [], []
    for batch in (2, 3, 4, 5):
        model.new(batch)
        caches.append(weakref.ref(model.cache))
        masks.append(weakref.ref(model.attention.mask))
        x = torch.randn(batch, TOKENS, WIDTH)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert backend.rewritten["sdpa"]
    gc.collect()
    for seen in (caches, masks):
        assert sum(one() is not None for one in seen) == 1


def test_a_mask_that_came_to_lie_where_another_was_is_looked_at() -> None:
    first = causal()
    expected = buffers.Expected(0, first)
    assert expected.holds(first)
    del first
    gc.collect()
    assert expected.holds(causal())
    assert not expected.holds(torch.ones(LENGTH, LENGTH))
    assert not expected.written()
