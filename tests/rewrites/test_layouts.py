"""Whatever reads a rewritten value, through any operations and after a graph break, finds it in memory as it lay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from rung.rewrites import PASSES, RewriteBackend
from rung.rewrites.graph.writes import aliases, storage

ROWS, HEADS, LENGTH, WIDTH = 2, 2, 6, 8
ALL = HEADS * WIDTH


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(ALL, ALL) for _ in range(3))
        self.patches, self.norm, self.pairs = (
            nn.Conv2d(3, 8, 2, stride=2),
            nn.BatchNorm2d(8),
            nn.Conv1d(ALL, 8, 2, stride=2),
        )

    def heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x).view(ROWS, LENGTH, HEADS, WIDTH).transpose(1, 2) for layer in (self.q, self.k, self.v)]


def by_hand(parts: Parts, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    q, k, v = parts.heads(x)
    return (q @ k.transpose(-1, -2) * WIDTH**-0.5).softmax(-1) @ v


def copied(parts: Parts, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*(one.contiguous() for one in parts.heads(x)), is_causal=True)


Source = Callable[[Parts, torch.Tensor, torch.Tensor], torch.Tensor]
SOURCES: dict[str, Source] = {
    "attention by hand": by_hand,
    "SDPA": lambda parts, x, image: F.scaled_dot_product_attention(*parts.heads(x)),
    "SDPA of copies": copied,
    "siblings": lambda parts, x, image: parts.q(x) * parts.k(x).sigmoid() + parts.v(x),
    "gate and up": lambda parts, x, image: F.silu(parts.q(x)) * parts.k(x),
    "patches": lambda parts, x, image: parts.patches(image),
    "patches, channels last": lambda parts, x, image: parts.patches(image.to(memory_format=torch.channels_last)),
    "patches and their norm": lambda parts, x, image: parts.norm(parts.patches(image)),
    "pairs of tokens": lambda parts, x, image: parts.pairs(x.transpose(1, 2)),
}


def merged(x: torch.Tensor) -> torch.Tensor:
    """Two dimensions as one, where a view can do that."""
    for k in range(x.dim() - 1):
        if x.stride(k) == x.stride(k + 1) * x.shape[k + 1]:
            return x.view(*x.shape[:k], -1, *x.shape[k + 2 :])
    return x


def apart(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "sin": torch.sin,
    "doubled in place": lambda x: x.mul_(2),
    "turned": lambda x: x.transpose(-1, -2) if x.dim() > 1 else x,
    "exchanged": lambda x: x.transpose(0, 1) if x.dim() > 1 else x,
    "dense": torch.Tensor.contiguous,
    "joined": lambda x: torch.cat([x, x], 0),
    "chosen": lambda x: torch.where(x > 0, x, x.new_zeros(())),
    "softmax": lambda x: x.float().softmax(-1),
    "norm": lambda x: F.layer_norm(x.float(), x.shape[-1:]),
    "cut": lambda x: x[..., 1:] if x.shape[-1] > 1 else x,
    "half": lambda x: x.chunk(2, -1)[0],
    "wide": lambda x: x.double().float(),
    "ones of its shape": lambda x: torch.ones_like(x) + x.float().mean(),
    "at least": lambda x: x.clamp_min(0.1),
    "bounded": F.hardtanh,
    "compared": lambda x: (x > 0.1).float(),
    "flipped": lambda x: x.flip(-1),
    "times larger": lambda x: x * torch.arange(1.0, 4.0).reshape(3, *[1] * x.dim()),
    "rounded": lambda x: x.mul(8).int(),
    "of few": lambda x: x.float().nan_to_num(),
    "merged": merged,
    "flat": lambda x: x.view(-1) if x.is_contiguous() else x.reshape(x.shape[0], -1),
    "apart": apart,
}


class Program(nn.Module):
    def __init__(self, source: str, steps: list[str]) -> None:
        super().__init__()
        self.parts, self.source, self.steps = Parts(), SOURCES[source], [STEPS[name] for name in steps]

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        made = self.source(self.parts, x, image)
        for step in self.steps:
            made = step(made)
        return made


def told(tensor: torch.Tensor) -> list[int]:
    """Strides of dimensions of more than one element; others say nothing."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def rewritten(source: str, steps: list[str]) -> RewriteBackend:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = Program(source, steps).eval(), (torch.randn(ROWS, LENGTH, ALL), torch.randn(ROWS, 3, 8, 8))
    backend = RewriteBackend(PASSES, "eager")
    with torch.no_grad():
        want, plain = model(*given), torch.compile(model, backend="eager", dynamic=False)(*given)
        torch._dynamo.reset()
        got = torch.compile(model, backend=backend, dynamic=False)(*given)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    if told(plain) == told(want):
        assert told(got) == told(want)
    assert not [reason for reason in backend.skipped if "the pass failed" in reason]
    return backend


PROGRAMS: Any = {"source": st.sampled_from(list(SOURCES)), "steps": st.lists(st.sampled_from(list(STEPS)), max_size=4)}


@given(**PROGRAMS)
@settings(max_examples=40, deadline=None)
def test_a_rewritten_value_lies_as_it_did(source: str, steps: list[str]) -> None:
    rewritten(source, steps)


@pytest.mark.long
@pytest.mark.timeout(1800)
@given(**PROGRAMS)
@settings(max_examples=1000, deadline=None)
def test_in_a_thousand_programs(source: str, steps: list[str]) -> None:
    rewritten(source, steps)


@given(**PROGRAMS)
@settings(max_examples=20, deadline=None)
def test_what_shares_memory_is_found_by_what_reads_it(source: str, steps: list[str]) -> None:
    """As by looking at every node of the graph."""

    def told(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            home = storage(node)
            all_of_them = {other for other in gm.graph.nodes if other is node or (home and storage(other) == home)}
            assert set(aliases(node)) == all_of_them
        return gm.forward

    torch._dynamo.reset()
    model, image = Program(source, steps).eval(), torch.randn(ROWS, 3, 8, 8)
    with torch.no_grad():
        torch.compile(model, backend=told, dynamic=False)(torch.randn(ROWS, LENGTH, ALL), image)


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_is_rewritten(source: str) -> None:
    assert rewritten(source, []).rewritten


@pytest.mark.parametrize(
    "steps",
    [
        ["relu", "apart", "merged"],
        ["sin"],
        ["wide"],
        ["half", "ones of its shape"],
        ["at least", "apart", "merged"],
        ["times larger"],
    ],
)
def test_what_torch_computes_of_it_and_returns_lies_as_it_did(steps: list[str]) -> None:
    assert rewritten("attention by hand", steps).matches["sdpa"] == 1
