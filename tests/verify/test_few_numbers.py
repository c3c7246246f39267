"""Quantities of few numbers, as the loss: the untouched model may be right by luck in the few cases that a candidate is compared in."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.observe import Row
from rung.verify.tolerance import judge, unlucky
from rung.verify.verdict import Verification
from rung.verify.verify import SEEDS, verify
from rung.workload import Workload

CPU = pick("cpu")
COMPARED = {seed + 100 for seed in SEEDS} | {500, 501, 502, 600}  # the batches of a verification, by their seeds
ULP = 2.0**-8  # of bfloat16, about


class Scaled(nn.Module):
    """Its output is what each weight makes of its own input, so powers of two are not rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(256, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def inputs(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 256, generator=draw).to(torch.bfloat16)
    return {"x": torch.full_like(x, 2.0 ** (seed % 3)) if seed in COMPARED else x}


def workload() -> Workload:
    """In the batches that a candidate is compared in, its loss is exact; in others, of the largest output, it is rounded."""
    return Workload(
        "lucky", Scaled, inputs, forward=lambda model, batch: model(batch["x"]), output=False, one_shape=True,
        loss=lambda output, batch: output.amax(), optimizer=lambda p: torch.optim.SGD(p, 0.1),
    )  # fmt: skip


def off_by(ulp: float) -> Verification:
    """A candidate whose loss, and nothing else, is off by so many ulp of bfloat16 wherever that is computed in."""

    def build(model: nn.Module, plan: Plan) -> Any:
        def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
            right = output.amax()
            wrong = right.detach().float() * ulp * ULP if right.dtype == torch.bfloat16 else 0.0
            return right.float() + wrong

        return Step(replace(workload(), loss=loss), model, plan, CPU)

    return verify(workload(), Plan(), CPU, build)


def test_a_loss_that_is_exact_by_luck_is_asked_for_in_more_cases() -> None:
    found = off_by(0.9)
    assert found.passed, found.record().failures
    worst = max((c for c in found.checks if c.precision == "bf16" and c.what == "loss"), key=lambda c: c.error)
    assert worst.error > 1e-3, "what is allowed whatever the untouched model's error is"
    assert worst.noise > 0, "only other cases have it"


def test_what_no_case_of_the_untouched_model_allows_is_refused() -> None:
    found = off_by(8.0)
    assert found.record().failures[0].startswith("loss is off by"), found.record().failures


def row(what: str, error: float, few: bool) -> Row:
    return Row(what, "case", error, 1e-4, few=few)


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        (row("output", 1e-4, few=False), {"loss"}),
        (row("output", 1.0, few=False), set()),
        (row("scale of output", 1.0, few=True), {"loss", "scale of output"}),
        (row("gradient of w", float("inf"), few=True), set()),
    ],
)
def test_more_cases_are_run_only_where_they_could_change_the_verdict(other: Row, asked: set[str]) -> None:
    found = [row("loss", 5e-3, few=True), other]
    assert unlucky(found, judge(found, "bf16")) == asked


def test_more_cases_of_the_untouched_model_count_for_what_they_are_of() -> None:
    found = [row("loss", 5e-3, few=True), row("output", 1e-4, few=False)]
    more = [Row("loss", "seed 14", 2e-3, 2e-3, few=True)]
    assert [c.tolerance for c in judge(found, "bf16", untouched=more)] == [6e-3, judge(found, "bf16")[1].tolerance]


@pytest.mark.parametrize(
    ("size", "allowed"),
    [(1.0, 6e-1), (4.0, 6e-1), (0.01, 6e-3), (0.0, judge([row("loss", 5e-3, few=True)], "bf16")[0].tolerance)],
)
def test_what_is_next_to_zero_in_another_case_allows_no_more_than_its_error_there(size: float, allowed: float) -> None:
    """0.2 of it: where it is 0.01, that is 0.002 where it is 1."""
    found = [replace(row("loss", 5e-3, few=True), size=1.0)]
    more = [Row("loss", "seed 14", 0.2, 0.2, few=True, size=size)]
    assert judge(found, "bf16", untouched=more)[0].tolerance == pytest.approx(allowed)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(torch.tanh(self.a(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("times", [0.0, 1.05, 1.5])
def test_a_gradient_that_is_next_to_zero_in_another_case_is_refused_where_it_is_wrong(times: float) -> None:
    """The sum of errors of both signs, of a bias: in one of the further cases it is off by 0.7 of itself."""

    def loss(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output.float(), x.float().mean(1, keepdim=True))

    regression = Workload(
        "regression",
        lambda: Regression().to(torch.bfloat16),
        lambda seed: torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16),
        loss=loss,
        optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    )

    def build(model: nn.Module, plan: Plan) -> Any:
        step = Step(regression, model, plan, CPU)
        model.get_parameter("o.bias").register_hook(lambda g: g * times)
        return step

    found = verify(regression, Plan(), CPU, build, precisions=("bf16",))
    assert found.record().failures[0].startswith("gradient of o.bias is off by"), found.record().failures
    assert verify(regression, Plan(), CPU, precisions=("bf16",)).passed
