"""What the untouched model is asked before a candidate is made: the same answers, and no memory that is kept for nothing."""

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify import answers
from rung.verify.verify import Verifier
from rung.workload import Workload

CPU = pick("cpu")
PLAN = Plan(fused_optimizer=True)


class Counting(nn.Module):
    """Counts its steps, which no rounding touches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def workload(mode: str = "train") -> Workload:
    return Workload(
        name="counting",
        model=Counting,
        inputs=lambda seed: torch.randn(6, 16, generator=torch.Generator().manual_seed(seed)),
        mode=mode,
        loss=(lambda output, batch: output.square().mean()) if mode == "train" else None,
        optimizer=(lambda parameters: torch.optim.AdamW(parameters, lr=0.01)) if mode == "train" else None,
    )


def halved(model: nn.Module, plan: Plan) -> Step:
    model.layers[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return Step(workload(), model, plan, CPU)


def verifier(mode: str = "train") -> Verifier:
    return Verifier(workload(mode), PLAN, CPU, "exact")


def test_answers_given_ahead_are_those_given_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for room, ahead in ((1.0, True), (0.0, False)):
        monkeypatch.setattr(answers, "ROOM", room)
        one = verifier()
        assert one.answer() is ahead
        one.compare()
        assert one.result.passed, one.result.as_dict()["failures"]
        found.append([(check.what, check.case, check.noise, check.tolerance) for check in one.result.checks])
    assert found[0] == found[1]


def test_the_memory_of_the_reference_is_given_back_before_a_candidate_is_made() -> None:
    one = verifier()
    assert one.answer()
    step = one.answers.reference.step
    assert step.optimizer is not None
    assert not step.optimizer.state
    assert all(p.grad is None for p in step.model.parameters())


def test_the_reference_is_not_run_again_once_all_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    one = verifier()
    assert one.answer()
    monkeypatch.setattr(one.answers.reference, "step", None)
    one.compare()
    assert one.result.passed


def test_a_wrong_candidate_is_refused_by_answers_given_ahead() -> None:
    one = Verifier(workload(), PLAN, CPU, "exact", halved)
    assert one.answer()
    one.compare()
    assert "gradient of layers.0.weight" in " ".join(one.result.as_dict()["failures"])


def test_an_inference_is_answered_case_by_case() -> None:
    """Its outputs may be as large as all of its memory."""
    one = verifier("infer")
    assert not one.answer()
    one.compare()
    assert one.result.passed
