"""A candidate that answers otherwise each time is refused with that as the reason; one that is wrong in one way is not blamed for it."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from rung.hardware import pick
from rung.ladder.plan import Plan
from rung.ladder.step import Step
from rung.ladder.verify import verify
from rung.workload import Workload

CPU = pick("cpu")


def workload(mode: str) -> Workload:
    return Workload(
        name="two layers",
        model=lambda: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)),
        inputs=lambda seed: torch.randn(6, 16, generator=torch.Generator().manual_seed(seed)),
        mode=mode,
        loss=(lambda output, batch: output.square().mean()) if mode == "train" else None,
        optimizer=(lambda parameters: torch.optim.SGD(parameters, lr=0.1)) if mode == "train" else None,
    )


class Sometimes(Step):
    """Wrong in every third call, by `wrong`, as a race between threads is."""

    calls, wrong, every = 0, 1.5, 3

    def __call__(self, batch: Any) -> Any:
        loss, output = super().__call__(batch)
        self.calls += 1
        return loss, output * self.wrong if self.calls % self.every == 0 else output


def refused(mode: str, **how: float) -> list[str]:
    kind = type("Kind", (Sometimes,), how)
    found = verify(
        workload(mode), Plan(fused_optimizer=mode == "train"), CPU, lambda m, at: kind(workload(mode), m, at, CPU)
    )
    assert found.wrong
    return [said for said in found.as_dict()["failures"] if "runs of the candidate on one batch" in said]


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("wrong", [1.5, math.nan])
def test_an_answer_that_changes_from_run_to_run_is_named(mode: str, wrong: float) -> None:
    (said,) = refused(mode, wrong=wrong)
    assert "not written yet" in said
    assert ("5.0e-01 apart" if wrong == 1.5 else "inf apart") in said


@pytest.mark.parametrize("wrong", [1.5, math.nan])
def test_an_answer_that_is_always_wrong_is_not(wrong: float) -> None:
    assert refused("infer", wrong=wrong, every=1) == []
