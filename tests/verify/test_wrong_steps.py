"""Candidates whose optimizer steps are wrong where next to nothing, or nothing but rounding, says what is right."""

import math
from collections.abc import Callable

import pytest
import torch
from faint_attention import workload
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")
Weights = dict[str, torch.Tensor]


class Wrong(Step):
    slip: Callable[[Weights, Weights], None]

    def __call__(self, batch):
        weights = dict(self.model.named_parameters())
        before = {name: t.detach().clone() for name, t in weights.items()}
        seen = super().__call__(batch)
        with torch.no_grad():
            self.slip(weights, before)
        return seen


class Stale(Step):
    """Computes on copies that are made anew only when someone else writes to the weights, as a cache of casts might."""

    def __call__(self, batch):
        weights = list(self.model.parameters())
        versions = [t._version for t in weights]
        if getattr(self, "versions", None) != versions:
            self.versions, self.copies = versions, [t.detach().clone() for t in weights]
        lives = [t.data for t in weights]
        for t, copy in zip(weights, self.copies, strict=True):
            t.data = copy
        self.optimizer.zero_grad(set_to_none=True)
        output = self.workload.forward(self.model, batch)
        loss = self.workload.loss(output, batch)
        loss.backward()
        for t, live in zip(weights, lives, strict=True):
            t.data = live
            t.data.add_(t.grad, alpha=-self.optimizer.param_groups[0]["lr"])
        return loss.detach(), output.detach()


def scaled(name: str, factor: float) -> Callable[[Weights, Weights], None]:
    return lambda weights, before: weights[name].copy_(before[name] + factor * (weights[name] - before[name]))


def filled(name: str, value: float) -> Callable[[Weights, Weights], None]:
    return lambda weights, before: weights[name].fill_(value)


@pytest.mark.parametrize(
    ("joined", "slip", "says"),
    [(False, filled("1.parts.1.bias", math.nan), "1.parts.1.bias"), (False, filled("1.parts.1.bias", 1e9), "1.parts.1.bias"),
     (False, scaled("1.parts.0.bias", 0), "1.parts.0.bias"), (True, scaled("1.parts.0.bias", 0), "1.parts.0.bias"),
     (True, scaled("1.parts.0.bias", 5), "1.parts.0.bias"), (True, scaled("1.norm.bias", 0), "1.norm.bias")],
    ids=["a key's bias is not a number", "a key's bias is far off", "a query's bias stays", "a joined bias stays",
         "a joined bias goes too far", "a norm's bias stays"],
)  # fmt: skip
def test_a_wrong_step_is_refused_by_name(joined: bool, slip, says: str) -> None:
    made = workload(joined)

    def build(model: nn.Module, plan: Plan) -> Step:
        step = Wrong(made, model, plan, CPU)
        step.slip = slip
        return step

    found = verify(made, Plan(bf16=True), CPU, build).record()
    assert f"change of {says}" in " ".join(found.failures), found.failures


def test_a_step_that_does_not_see_its_own_update_is_refused() -> None:
    made = workload(joined=False)
    plain = Workload(**{**vars(made), "optimizer": lambda p: torch.optim.SGD(p, lr=0.1)})
    assert verify(plain, Plan(), CPU, precisions=["exact"]).passed
    found = verify(plain, Plan(), CPU, lambda model, plan: Stale(plain, model, plan, CPU), ["exact"]).record()
    assert "after optimizer steps" in " ".join(found.failures), found.failures
