"""Gradients that a workload clips: in its own step, in a recorded one, under a recipe, and in what verification sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import rung
from rung.engine import step as steps
from rung.engine.optimizer import why_not_capturable, why_not_fused
from rung.engine.step import Step
from rung.errors import UsageError, WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.verify import verify
from rung.workload import Workload

DEVICE = pick()
MOST = 0.05  # gradients of the model below are larger


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def inputs(seed: int) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))


def loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return (output - batch[:, :4]).square().mean()


def clipped(optimizer: Callable[..., Any] = adam, most: float | None = MOST) -> Workload:
    return Workload("clipped", net, inputs, loss=loss, optimizer=optimizer, max_grad_norm=most)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[torch.Tensor]) -> list[float]:
    norms = []
    for batch in batches:
        optimizer.zero_grad()
        loss(model(batch), batch).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MOST)))
        optimizer.step()
    return norms


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(fused_optimizer=True),
        Plan(compile=True),
        pytest.param(Plan(capture=True), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")),
    ],
    ids=["untouched", "fused", "compiled", "captured"],
)  # fmt: skip
def test_a_step_clips_as_a_loop_by_hand_does(plan: Plan, optimizer: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    one, other = (net().to(DEVICE.torch_name) for _ in range(2))
    other.load_state_dict(one.state_dict())
    batches = [inputs(seed).to(DEVICE.torch_name) for seed in range(8)]
    want = by_hand(one, optimizer(one.parameters()), batches)
    assert min(want) > MOST
    step = Step(clipped(optimizer), other, plan, DEVICE)
    got = []
    for batch in batches:
        step(batch)
        assert step.grad_norm is not None
        got.append(float(step.grad_norm))
        left = torch.stack([p.grad.norm() for p in other.parameters()]).norm()  # type: ignore[union-attr]
        torch.testing.assert_close(float(left), MOST, rtol=1e-3, atol=0)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)


def test_one_that_clips_nothing_has_no_norm() -> None:
    step = Step(clipped(most=None), net(), Plan(), pick("cpu"))
    step(inputs(0))
    assert step.grad_norm is None


def test_a_recipe_clips_in_its_step_and_tells_the_norm() -> None:
    torch.manual_seed(0)
    one, other = net(), net()
    other.load_state_dict(one.state_dict())
    batches = [inputs(seed) for seed in range(4)]
    want = by_hand(one, adam(one.parameters()), batches)
    train = rung.apply(other, ["fused-optimizer"], loss=loss, optimizer=adam, max_grad_norm=MOST)
    assert train.grad_norm is None
    for batch, norm in zip(batches, want, strict=True):
        train.step(batch)
        torch.testing.assert_close(float(train.grad_norm), norm, rtol=1e-3, atol=1e-5)  # type: ignore[arg-type]
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)
    with pytest.raises(UsageError, match="loss= and optimizer= alone"):
        rung.apply(net(), ["fused-optimizer"], max_grad_norm=1.0)


def test_no_rung_is_left_out_for_it_as_for_a_hook_that_clips() -> None:
    made = adam(net().parameters())
    assert why_not_fused(made) == why_not_capturable(made) == ""
    made.register_step_pre_hook(lambda *_: None)
    assert "give max_grad_norm= instead" in why_not_fused(made)
    assert "give max_grad_norm= instead" in why_not_capturable(made)


def test_what_trains_as_the_workload_does_is_verified() -> None:
    found = verify(clipped(), Plan(fused_optimizer=True), pick("cpu"), precisions=["exact"]).record()
    assert found.passed, found.failures


def not_at_all(optimizer: Any, model: nn.Module, most: float | None) -> torch.Tensor | None:
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])  # type: ignore[misc]
    optimizer.step()
    return norm


def each_by_itself(optimizer: Any, model: nn.Module, most: float | None) -> torch.Tensor | None:
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])  # type: ignore[misc]
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_([parameter], most or 0.0)
    optimizer.step()
    return norm


def twice_as_large(optimizer: Any, model: nn.Module, most: float | None) -> torch.Tensor | None:
    for parameter in model.parameters():
        parameter.grad *= 2  # type: ignore[operator]
    norm = nn.utils.clip_grad_norm_(model.parameters(), most or 0.0)
    optimizer.step()
    return norm


@pytest.mark.parametrize(
    ("mistake", "says"),
    [(not_at_all, "gradient of"), (each_by_itself, "gradient of"), (twice_as_large, "gradient norm")],
)
def test_a_candidate_that_clips_otherwise_is_refused(
    mistake: Callable[..., Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that are all twice as large are the same once they are clipped: their norm tells."""
    usual = steps.update

    def update(optimizer: Any, model: nn.Module, most: float | None) -> torch.Tensor | None:
        fused = optimizer.param_groups[0]["fused"]
        return (mistake if fused else usual)(optimizer, model, most)

    monkeypatch.setattr(steps, "update", update)
    found = verify(clipped(), Plan(fused_optimizer=True), pick("cpu"), precisions=["exact"]).record()
    assert not found.passed
    assert any(says in failure for failure in found.failures), found.failures


@pytest.mark.parametrize("most", [0.0, -1.0, float("nan"), "1", True])
def test_what_is_no_norm_is_refused(most: Any) -> None:
    with pytest.raises(WorkloadError, match="give a number above 0"):
        clipped(most=most)


def test_inference_has_no_gradients_to_clip() -> None:
    with pytest.raises(WorkloadError, match="leave it out in inference"):
        replace(clipped(), mode="infer")
