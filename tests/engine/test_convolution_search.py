"""`torch.backends.cudnn.benchmark` under a plan: on while a step runs, forward and back, and as it was afterwards."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from known_facts import facts_of
from torch import nn

import rung
from rung import Workload
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Original, Plan
from rung.recipes.applied import Applied
from rung.recipes.compatibility import unsupported_rungs
from rung.rungs import BY_NAME, Context
from rung.verify.verify import verify
from rung.workload import seeded_model

CPU, RUNG = pick("cpu"), BY_NAME["cudnn-benchmark"]
SEARCHES = Plan(cudnn_benchmark=True)
cudnn = torch.backends.cudnn


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    before = cudnn.benchmark
    yield
    cudnn.benchmark = before


class Noted(torch.autograd.Function):
    """Notes whether convolutions are searched for, going forward and back."""

    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Noted.seen.append(cudnn.benchmark)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        Noted.seen.append(cudnn.benchmark)
        return slope


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Noted.apply(self.layer(x))


INFER = Workload("images", Model, lambda seed: torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed)))
TRAIN = replace(
    INFER,
    mode="train",
    loss=lambda output, batch: output.square().mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)


@pytest.mark.parametrize("workload", [INFER, TRAIN], ids=["infer", "train"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("plan", [Plan(), SEARCHES], ids=["without", "with"])
def test_it_holds_while_a_step_runs(workload: Workload, before: bool, plan: Plan) -> None:
    cudnn.benchmark, Noted.seen = before, []
    step = Step(workload, seeded_model(workload), plan, CPU)
    step(workload.inputs(0))
    searched = before or plan.cudnn_benchmark
    assert Noted.seen == [searched] * (2 if workload.mode == "train" else 1)
    assert step.applied()["cudnn_benchmark"] is searched
    assert cudnn.benchmark is before


def test_it_is_as_it_was_after_a_model_that_raises() -> None:
    step = Step(INFER, seeded_model(INFER), SEARCHES, CPU)
    with pytest.raises(RuntimeError):
        step(torch.randn(2, 5, 6, 6))
    assert not cudnn.benchmark


def test_under_a_recipe_it_holds_for_the_process_until_it_is_undone() -> None:
    """Backward passes that the user runs are outside of every call."""
    Noted.seen = []
    with pytest.warns(UserWarning, match="convolutions on a CPU are not searched for"):
        rung.apply(Model(), "cudnn-benchmark").undo()
    applied = Applied(Model(), SEARCHES, CPU, None, None, ["cudnn-benchmark"], "a recipe", ())
    applied(INFER.inputs(0)).sum().backward()
    assert Noted.seen == [True, True]
    applied.undo()
    assert not cudnn.benchmark


@pytest.mark.parametrize("first", [0, 1])
def test_the_setting_is_as_it_was_once_no_model_asks_for_it(first: int) -> None:
    both = [Applied(Model(), SEARCHES, CPU, None, None, ["cudnn-benchmark"], "a recipe", ()) for _ in range(2)]
    both[first].undo()
    both[first].undo()  # which says nothing of the other one
    assert cudnn.benchmark
    both[1 - first].undo()
    assert not cudnn.benchmark
    cudnn.benchmark = True
    both[0].undo()
    assert cudnn.benchmark  # what the user set since


@pytest.mark.parametrize("first", [0, 1])
def test_so_is_the_precision_of_products(first: int) -> None:
    before = torch.get_float32_matmul_precision()
    both = [rung.apply(nn.Linear(4, 4), "tf32") for _ in range(2)]
    assert torch.get_float32_matmul_precision() == "high"
    both[first].undo()
    assert torch.get_float32_matmul_precision() == "high"
    both[1 - first].undo()
    assert torch.get_float32_matmul_precision() == before


def test_batches_that_are_left_to_the_model_as_it_is_are_not_searched_for() -> None:
    plan = replace(SEARCHES, original=Original(elements_at_least=10))
    for workload in (INFER, TRAIN):
        Noted.seen = []
        Step(workload, seeded_model(workload), plan, CPU)(workload.inputs(0))
        assert set(Noted.seen) == {False}
    Noted.seen = []
    applied = Applied(Model(), plan, CPU, None, None, ["cudnn-benchmark"], "a recipe", ())
    applied(INFER.inputs(0))
    assert Noted.seen == [False]
    assert cudnn.benchmark
    applied.undo()


def test_it_is_verified_and_the_reference_is_not_searched_for() -> None:
    Noted.seen = []
    found = verify(TRAIN, SEARCHES, CPU, precisions=["exact"]).record()
    assert found.passed, found.failures
    assert {True, False} == {*Noted.seen}


def context(**facts: Any) -> Context:
    return Context(
        Plan(), "bf16", facts_of({"gpu": True, "mode": "infer", **facts}), {"convolution": 50.0, "gemm": 50.0}, {}
    )


def test_it_applies_where_convolutions_take_time_and_nobody_searched() -> None:
    assert RUNG.applies(context()) is None
    assert "True already" in str(RUNG.applies(context(cudnn_benchmark=True)))
    bare = replace(context(), parts={"convolution": 1.0, "gemm": 99.0})
    assert "less than 2% of the step is convolution" in str(RUNG.applies(bare))
    assert unsupported_rungs(["cudnn-benchmark"], CPU, None)
