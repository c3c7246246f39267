"""Buffers that begin at infinity, or at no size, as the ranges that observers of quantization have seen: what training does to them is compared,
and a candidate that does otherwise is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.audit import audit
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")
WIDTH = 8


class Observed(nn.Module):
    """Notes the least of what it was given; `unused` stays infinite."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("least", torch.full(shape, torch.inf))
        self.register_buffer("unused", torch.full((3,), -torch.inf))

    def seen(self, y: torch.Tensor) -> torch.Tensor:
        return y.amin(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        with torch.no_grad():
            now = self.seen(y)
            before = self.least.clone() if self.least.numel() else now
            self.least.resize_(now.shape).copy_(torch.minimum(before, now))
        return y - self.least.detach()


def workload(shape: tuple[int, ...]) -> Workload:
    return Workload(
        "observed",
        lambda: Observed(shape),
        lambda seed: torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def candidate(change: Callable[[Any], None], given: Workload) -> Callable[[nn.Module, Plan], Step]:
    class Changed(Step):
        def __call__(self, batch: Any) -> Any:
            result = super().__call__(batch)
            change(self.model)
            return result

    return lambda model, plan: Changed(given, model, plan, CPU)


@pytest.mark.parametrize("shape", [(WIDTH,), (0,)], ids=["infinite", "empty"])
def test_the_untouched_model_passes(shape: tuple[int, ...]) -> None:
    given = workload(shape)
    audit(given, CPU)
    found = verify(given, Plan(), CPU)
    assert not found.wrong, (found.failures, [check for check in found.checks if not check.passed])


def off(model: Any) -> None:
    model.least.mul_(1.01)


def written(model: Any) -> None:
    model.unused.fill_(0.0)


def other_sign(model: Any) -> None:
    model.unused.neg_()


def lost(model: Any) -> None:
    model.least.fill_(torch.inf)


@pytest.mark.parametrize("change", [off, written, other_sign, lost])
@pytest.mark.parametrize("shape", [(WIDTH,), (0,)], ids=["infinite", "empty"])
def test_a_candidate_that_leaves_another_is_refused(shape: tuple[int, ...], change: Callable[[Any], None]) -> None:
    given = workload(shape)
    found = verify(given, Plan(), CPU, candidate(change, given))
    assert any(
        not check.passed and check.what.startswith("change of ") and ("least" in check.what or "unused" in check.what)
        for check in found.checks
    ), found.failures


@pytest.mark.parametrize("from_call", [0, 8], ids=["at once", "in the last step"])
def test_a_candidate_that_resizes_an_infinite_buffer_is_refused(from_call: int) -> None:
    calls = [0]

    def resized(model: Any) -> None:
        calls[0] += 1
        if calls[0] > from_call:
            model.unused.resize_(5).fill_(-torch.inf)

    given = workload((WIDTH,))
    found = verify(given, Plan(), CPU, candidate(resized, given))
    assert any(not check.passed and "unused" in check.what for check in found.checks), found.failures
