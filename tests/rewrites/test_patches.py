"""Convolutions whose stride is their window, as matrix products: equal results, layouts and gradients; others are left, with a reason."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from known_facts import facts_of
from torch import nn

import rung
from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rungs import BY_NAME, Context

LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def _told(tensor: torch.Tensor) -> list[int]:
    """Strides of dimensions of more than one element; others say nothing."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def rewritten(model: nn.Module, *inputs: torch.Tensor, passes: tuple[str, ...] = ("patch-matmul",)) -> RewriteBackend:
    """Compares results, their strides and all gradients with those of the model as it is."""
    torch._dynamo.reset()
    backend, other = RewriteBackend(passes, "eager"), copy.deepcopy(model)
    run = torch.compile(other, backend=backend, dynamic=False, fullgraph=True)
    mine, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    want, got = model(*mine), run(*theirs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert _told(got) == _told(want)
    want.square().sum().backward()
    got.square().sum().backward()
    for one, its in zip([*model.parameters(), *mine], [*other.parameters(), *theirs], strict=True):
        torch.testing.assert_close(its.grad, one.grad, rtol=1e-3, atol=1e-3)
    return backend


@given(
    rank=st.integers(1, 3), window=st.integers(1, 3), places=st.integers(1, 3), over=st.integers(0, 2),
    channels=st.integers(1, 3), bias=st.booleans(),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_window_gives_what_the_convolution_gives(
    rank: int, window: int, places: int, over: int, channels: int, bias: bool
) -> None:
    size = window * places + min(over, window - 1)
    layer = LAYERS[rank](channels, 4, window, stride=window, bias=bias)
    backend = rewritten(layer, torch.randn(2, channels, *(size,) * rank))
    assert backend.matches == {"patch-matmul": int(window > 1)}


def test_windows_of_two_sizes_are_told_apart() -> None:
    layer = nn.Conv2d(2, 5, (2, 4), stride=(2, 4), padding="valid")
    assert rewritten(layer, torch.randn(3, 2, 6, 8)).matches == {"patch-matmul": 1}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_result_lies_as_the_code_after_the_graph_was_promised(layout: torch.memory_format) -> None:
    layer = nn.Conv2d(3, 8, 4, stride=4)
    assert rewritten(layer, torch.randn(2, 3, 8, 8).contiguous(memory_format=layout)).rewritten


class Embedding(nn.Module):
    """Patches as tokens, in the ways in which vision transformers write it."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.patches, self.norm, self.view = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8), view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.patches(x)
        tokens = found.view(len(x), 8, -1) if self.view else found.flatten(2)
        return self.norm(tokens.transpose(1, 2))


@pytest.mark.parametrize("view", [False, True])
def test_patches_are_embedded_as_before(view: bool) -> None:
    assert rewritten(Embedding(view), torch.randn(2, 3, 8, 8)).matches == {"patch-matmul": 1}


class Follows(nn.Module):
    """Patches, then an operation whose result lies as what it reads, then code that relies on how it lies."""

    def __init__(self, then: Callable[[Any, torch.Tensor], torch.Tensor], apart: bool) -> None:
        super().__init__()
        self.patches, self.norm, self.mix, self.last = (
            nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(32, 2),
        )  # fmt: skip
        self.then, self.apart = then, apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.then(self, self.patches(x))
        if self.apart:
            torch._dynamo.graph_break()
        return self.last(found.view(len(x), -1) if found.is_contiguous() else found.reshape(len(x), -1))


FOLLOWING: dict[str, Callable[[Follows, torch.Tensor], torch.Tensor]] = {
    "itself": lambda model, x: x,
    "relu": lambda model, x: x.relu(),
    "norm": lambda model, x: model.norm(x),
    "convolution": lambda model, x: model.mix(F.gelu(x)),
    "pooling": lambda model, x: F.max_pool2d(x, 3, 1, 1),
    "joined": lambda model, x: torch.cat([x, x], 1)[:, :8].sin(),
    "chosen": lambda model, x: torch.where(x > 0, x, x.new_zeros(())),
}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", FOLLOWING)
def test_what_is_computed_of_it_lies_as_it_did(name: str, apart: bool) -> None:
    torch._dynamo.reset()
    model, x = Follows(FOLLOWING[name], apart), torch.randn(2, 3, 8, 8)
    backend = RewriteBackend(["patch-matmul"], "eager")
    torch.testing.assert_close(torch.compile(model, backend=backend, dynamic=False)(x), model(x), rtol=1e-4, atol=1e-5)
    assert backend.matches == {"patch-matmul": 1}


def test_inductor_returns_it_as_it_lay() -> None:
    torch._dynamo.reset()
    model, x = (
        nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1)).eval(),
        torch.randn(2, 3, 8, 8),
    )
    with torch.no_grad():
        got = rung.apply(model, ["compile", "patch-matmul"])(x)
    assert got.stride() == model(x).stride()
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)


def test_one_whose_input_lies_otherwise_is_returned_as_it_lay() -> None:
    """Conv1d over tokens that a transformer made: its channels lie next to one another."""
    backend = rewritten(Turned(), torch.randn(2, 8, 3))
    assert backend.matches == {"patch-matmul": 1}


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(3, 4, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(1, 2))


def test_a_batch_norm_that_was_folded_into_one_goes_with_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8)).eval()
    backend = rewritten(model, torch.randn(2, 3, 8, 8), passes=("folded-batch-norm", "patch-matmul"))
    assert backend.matches == {"folded-batch-norm": 1, "patch-matmul": 1}


def test_an_empty_one_is_left_and_the_others_are_not() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 2, stride=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum() + self.layer(x[:0]).sum()

    backend = rewritten(Two(), torch.randn(2, 3, 4, 4))
    assert backend.matches == {"patch-matmul": 1}
    assert "its result is empty" in backend.skipped[0]


def test_its_product_is_no_linear_layer_that_the_model_has() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.out = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.patches(x).flatten(2).transpose(1, 2))[:, -1]

    torch._dynamo.reset()
    model, x, backend = Last(), torch.randn(2, 3, 8, 8), RewriteBackend(["narrow-logits", "patch-matmul"], "eager")
    torch.testing.assert_close(torch.compile(model, backend=backend, dynamic=False)(x), model(x), rtol=1e-4, atol=1e-5)
    assert backend.matches == {"narrow-logits": 1, "patch-matmul": 1}
    assert backend.after["layer_flop"] * 4 == backend.before["layer_flop"]  # one of four tokens


@pytest.mark.parametrize(("others", "best"), [(0, 0.1), (1, 0.5)])
def test_a_gain_is_predicted_by_the_convolutions_of_any_rank(others: int, best: float) -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 4, stride=4), *(nn.Conv1d(4, 4, 3, padding=1) for _ in range(others)))
    backend = rewritten(model, torch.randn(2, 2, 16))
    facts = facts_of({"matches": backend.matches, "captured": backend.before})
    found = BY_NAME["patch-matmul"].remaining(Context(Plan(), "exact", facts, {"convolution": 100.0}, {}))
    assert found["convolution"][0] == best


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.Conv2d(4, 4, 2, stride=2, padding=1), "it pads its input"),
        (nn.Conv2d(4, 4, 2, stride=2, dilation=2), "its windows have gaps"),
        (nn.Conv2d(4, 4, 2, stride=2, groups=2), "its channels are in groups"),
    ],
)
def test_others_are_left_with_a_reason(layer: nn.Module, why: str) -> None:
    backend = rewritten(layer, torch.randn(2, 4, 8, 8))
    assert backend.rewritten == {}
    assert why in backend.skipped[0]


def test_one_without_a_batch_is_left() -> None:
    backend = rewritten(nn.Conv2d(3, 4, 2, stride=2), torch.randn(3, 4, 4))
    assert backend.rewritten == {}
    assert "no batch" in backend.skipped[0]


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding="same")]
)
def test_windows_that_overlap_and_single_points_are_none_of_its_business(layer: nn.Module) -> None:
    backend = rewritten(layer, torch.randn(2, 3, 9, 9))
    assert (backend.rewritten, backend.skipped) == ({}, [])


def test_a_weight_kept_in_bfloat16_is_multiplied_as_it_is_kept() -> None:
    torch._dynamo.reset()
    model, x = nn.Conv2d(3, 8, 4, stride=4).eval(), torch.randn(2, 3, 8, 8)
    applied: Any = rung.apply(model, ["bf16", "bf16-weights", "patch-matmul"])
    with torch.no_grad():
        torch.testing.assert_close(applied(x), model(x), rtol=0.05, atol=0.05)
        model.weight.mul_(2)  # and again once it is another
        torch.testing.assert_close(applied(x), model(x), rtol=0.05, atol=0.05)
    assert applied._compiled.applied()["matches"] == {"bf16-weights": 2, "patch-matmul": 1}
    applied.undo()
