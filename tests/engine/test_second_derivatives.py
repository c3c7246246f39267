"""A step that differentiates a derivative once more is compiled and verified, where Dynamo can trace `torch.autograd.grad`."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.dynamo import DERIVATIVES, change_settings, expect_changes, restore_change_settings
from rung.hardware import pick
from rung.rungs import plan_of
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")
needs_tracing = pytest.mark.skipif(
    not hasattr(torch._dynamo.config, DERIVATIVES), reason="this torch breaks the graph at torch.autograd.grad"
)


class Forces(nn.Module):
    """The energy of some points, and what moves them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.up, self.out = (nn.Linear(a, b) for a, b in ((3, 16), (16, 32), (16, 32), (32, 1)))

    def forward(self, points: torch.Tensor) -> Any:
        points = points.detach().requires_grad_(True)
        h = F.silu(self.first(points))
        energy = self.out(F.silu(self.gate(h)) * self.up(h)).sum((1, 2))
        (slope,) = torch.autograd.grad(energy.sum(), points, create_graph=True)
        return energy, -slope


def forces() -> Workload:
    return Workload(
        "forces", Forces, lambda seed: torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, points: (output[1] + points).square().mean() + output[0].square().mean(),
        optimizer=lambda parameters: torch.optim.Adam(parameters),
    )  # fmt: skip


@needs_tracing
@pytest.mark.parametrize("names", [["fused-gate-up"], ["fused-gate-up", "compile"]], ids="+".join)
def test_forces_are_trained_under_a_recipe(names: list[str]) -> None:
    with torch._dynamo.config.patch({DERIVATIVES: False}):
        expect_changes()
        found = verify(forces(), plan_of(names), CPU)
    assert found.passed, found.record().failures


@needs_tracing
def test_the_setting_is_put_back() -> None:
    with torch._dynamo.config.patch({DERIVATIVES: False}):
        before = change_settings()
        expect_changes()
        assert getattr(torch._dynamo.config, DERIVATIVES)
        restore_change_settings(before)
        assert not getattr(torch._dynamo.config, DERIVATIVES)
