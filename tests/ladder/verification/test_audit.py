"""Why a workload cannot be climbed: the sentences, and what must not be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rung.errors import WorkloadError
from rung.hardware import pick
from rung.ladder.verification.audit import audit
from rung.workload import Workload

CPU = pick("cpu")
WIDTH = 8


def workload(**changes: Any) -> Workload:
    plain = Workload(
        "audited",
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda seed: torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
    return replace(plain, **changes)


def refused(**changes: Any) -> str:
    with pytest.raises(WorkloadError) as caught:
        audit(workload(**changes), CPU)
    said = str(caught.value)
    assert said.startswith("workload 'audited': ")
    return said


class Experts(nn.Module):
    """Each row goes to one of eight experts, so that three rows leave most without any."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x.argmax(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return out


def test_experts_that_a_few_rows_leave_out_are_not_without_a_gradient() -> None:
    assert audit(workload(model=Experts), CPU) == []


def test_what_no_step_gives_a_gradient_is_named() -> None:
    class Unused(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.never = nn.Parameter(torch.ones(1))

    assert audit(workload(model=Unused), CPU) == ["never"]


def micro_batches(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for part in batch.chunk(2):
        mean = model(part).square().mean() / 2
        mean.backward()
        total += mean.detach()
    return total


def test_a_forward_that_calls_backward_itself_is_told_to_leave_it_out() -> None:
    said = refused(forward=micro_batches, loss=lambda output, batch: output)
    assert "calls backward() itself" in said
    assert "return the loss (of micro-batches, their sum)" in said


def test_a_loss_without_a_gradient_is_said_to_be_one() -> None:
    assert "its loss has no grad_fn" in refused(loss=lambda output, batch: output.detach().mean())


def test_what_else_goes_wrong_in_a_step_is_raised_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        audit(workload(loss=lambda output, batch: output), CPU)


def divided(model: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
    y = model(batch)
    return {"y": y, "means": [y.mean(1), y[:, 0] / 0.0]}


@pytest.mark.parametrize(
    ("forward", "loss", "says"),
    [
        (divided, lambda output, batch: output["y"].mean(), "its output['means'][1] is not finite on fresh weights (64 of 64"),
        (lambda model, batch: model(batch) / 0.0, lambda output, batch: batch.mean() + 0 * output.nan_to_num(0, 0, 0).mean(), "its output is not finite on"),
        (lambda model, batch: model(batch), lambda output, batch: output.mean() / 0.0, "its loss is not finite on fresh weights (1 of 1"),
    ],
)  # fmt: skip
def test_what_is_not_finite_is_named_with_its_place(forward: Callable[..., Any], loss: Any, says: str) -> None:
    said = refused(forward=forward, loss=loss)
    assert says in said
    assert "give other inputs, or weights made otherwise" in said


def test_random_numbers_in_the_forward_may_come_with_the_inputs() -> None:
    said = refused(forward=lambda model, batch: model(batch) + torch.randn(()))
    assert said.endswith("switch the randomness off for the climb, or draw it in inputs(seed).")
