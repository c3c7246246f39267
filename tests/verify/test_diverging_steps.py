"""Training that goes well from the model's own weights, and diverges from perturbed ones, whose gradients are far larger."""

from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model

CPU = pick("cpu")


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x) ** 3


def workload(lr: float) -> Workload:
    return Workload(
        "cubed", Cubed, lambda seed: torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, x: output.square().mean(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
    )  # fmt: skip


class GoesTooFar(Step):
    """Moves every weight by a hundredth more."""

    def __call__(self, batch: Any) -> Any:
        before = [p.detach().clone() for p in self.model.parameters()]
        results = super().__call__(batch)
        with torch.no_grad():
            for p, was in zip(self.model.parameters(), before, strict=True):
                p.add_(p - was, alpha=0.01)
        return results


@pytest.mark.parametrize("lr", [0.01, 0.3])
def test_it_is_compared_from_weights_on_which_the_untouched_model_stays_finite(lr: float) -> None:
    own = workload(lr)
    step = Step(own, seeded_model(own), Plan(), CPU)
    assert all(bool(step(own.inputs(seed))[0].isfinite()) for seed in range(20))
    found = verify(own, Plan(fused_optimizer=True), CPU)
    assert found.passed, found.record().failures
    wrong = verify(own, Plan(), CPU, lambda model, plan: GoesTooFar(own, model, plan, CPU))
    assert {check.what[:9] for check in wrong.checks if not check.passed} == {"change of"}
    assert not wrong.failures


def test_training_that_diverges_by_itself_is_compared_with_nothing() -> None:
    found = verify(workload(1e30), Plan(), CPU)
    assert not found.passed
    assert all("is not finite" in failure for failure in found.record().failures)
