"""A candidate that answers otherwise each time is refused with that as the reason; one that is wrong in one way is not blamed for it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.linears import EightBits
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify import verify as verifying
from rung.verify.nondeterminism import describe_nondeterminism
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model

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
    return [said for said in found.record().failures if "runs of the candidate on one batch" in said]


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("wrong", [1.5, math.nan])
def test_an_answer_that_changes_from_run_to_run_is_named(mode: str, wrong: float) -> None:
    (said,) = refused(mode, wrong=wrong)
    assert "uninitialized memory" in said
    assert ("differ by up to 5.0e-01" if wrong == 1.5 else "differ by up to inf") in said


def test_near_ties_between_integers_are_no_reason() -> None:
    """One of 600 numbers moves in every run; what is wrong is the output, always."""
    chosen = replace(
        workload("infer"),
        inputs=lambda seed: torch.randn(600, 16, generator=torch.Generator().manual_seed(seed)),
        forward=lambda model, batch: (model(batch), model(batch).argmax(-1)),
    )

    class Moved(Sometimes):
        def __call__(self, batch: Any) -> Any:
            loss, (output, choice) = Step.__call__(self, batch)
            self.calls += 1
            choice = choice.clone()
            choice[self.calls % len(choice)] += 1
            return loss, (output * 1.5, choice)

    found = verify(chosen, Plan(passes=("sdpa",)), CPU, lambda m, at: Moved(chosen, m, at, CPU)).record()
    assert "off by" in found.failures[0]


def test_a_device_that_is_lost_hides_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*given: Any) -> Any:
        raise RuntimeError("the device is lost")

    class Last(Sometimes):
        def __call__(self, batch: Any) -> Any:
            if self.calls == 4:
                monkeypatch.setattr(verifying, "perturbed", lost)
                lost()
            return super().__call__(batch)

    made = workload("infer")
    found = verify(made, Plan(passes=("sdpa",)), CPU, lambda m, at: Last(made, m, at, CPU)).record()
    assert any("the candidate raised RuntimeError" in said for said in found.failures)


def test_a_step_that_copies_its_weights_is_prepared_once_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    made, prepared = workload("infer"), []
    plan, made_first, renewed = Plan(linears="int8"), EightBits.__init__, EightBits.renew
    monkeypatch.setattr(EightBits, "__init__", lambda self, *given: prepared.append(1) or made_first(self, *given))
    monkeypatch.setattr(EightBits, "renew", lambda self: prepared.append(1) or renewed(self))
    cases = [(seeded_model(made).state_dict(), made.inputs(seed)) for seed in range(3)]
    steps = [Step(made, seeded_model(made), at, CPU) for at in (plan, Plan())]
    assert describe_nondeterminism(*steps, cases, "exact", True) == []
    assert len(prepared) == 3


@pytest.mark.parametrize("wrong", [1.5, math.nan])
def test_an_answer_that_is_always_wrong_is_not(wrong: float) -> None:
    assert refused("infer", wrong=wrong, every=1) == []
