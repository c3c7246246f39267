"""Dropout stays what it was: the same rate, in the same places, another mask each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.audit import audit
from rung.verify.randomness import RUNS, _most_different, active, without_dropout
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model

CPU = pick("cpu")


class Model(nn.Module):
    """A dropout module, and one that is a number handed to a function."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 8)
        self.dropout, self.attention_dropout = nn.Dropout(0.1), 0.2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(F.gelu(self.up(x)), self.attention_dropout, self.training)
        return self.dropout(self.down(x))


def workload() -> Workload:
    return Workload(
        name="drops",
        model=Model,
        inputs=lambda seed: torch.randn(6, 16, generator=torch.Generator().manual_seed(seed)),
        mode="train",
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def failures(change: Callable[[Step], None]) -> list[str]:
    def build(model: nn.Module, at: Plan) -> Step:
        # The rates are already 0 where results are compared run by run.
        w = workload() if active(model) else without_dropout(workload())
        step = Step(w, model, at, CPU)
        change(step)
        return step

    found = verify(workload(), Plan(), CPU, build)
    assert found.checks
    return found.record().failures


def lost(step: Step) -> None:
    step.model.dropout.forward = lambda x: x  # type: ignore[union-attr, method-assign]


def lost_by_function(step: Step) -> None:
    step.model.attention_dropout = 0.0  # type: ignore[assignment]


def twice_the_rate(step: Step) -> None:
    rate = step.model.dropout.p  # type: ignore[union-attr]
    step.model.dropout.forward = lambda x: F.dropout(x, 2 * rate)  # type: ignore[union-attr, method-assign, operator]


def not_scaled_up(step: Step) -> None:
    rate = step.model.dropout.p  # type: ignore[union-attr]
    step.model.dropout.forward = lambda x: x * (torch.rand_like(x) >= rate)  # type: ignore[union-attr, method-assign, operator]


def one_mask(step: Step) -> None:
    run = step._run

    def same(batch: Any) -> Any:
        torch.manual_seed(7)
        return run(batch)

    step._run = same  # type: ignore[assignment]


def test_honest_candidates_pass() -> None:
    assert failures(lambda step: None) == []
    assert verify(workload(), Plan(), CPU).passed


@pytest.mark.parametrize("change", [lost, lost_by_function, twice_the_rate, not_scaled_up])
def test_another_dropout_is_refused(change: Callable[[Step], None]) -> None:
    assert any("has another distribution than the baseline's" in said for said in failures(change))


def test_a_mask_that_is_replayed_is_refused() -> None:
    assert any("the same results in every run" in said for said in failures(one_mask))


def test_dropout_by_function_does_not_make_a_workload_unfit() -> None:
    assert audit(workload(), CPU) == []
    assert active(seeded_model(workload()))
    assert not active(seeded_model(without_dropout(workload())))
    assert not active(seeded_model(workload()).eval())


class Counts(nn.Module):
    """Its results depend on how often it was called: by an attribute, or by a buffer."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(16, 8), 0
        self.register_buffer("count", torch.zeros(()))
        self.buffer = buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.buffer:
            self.count += 1
            return self.linear(x) * self.count
        return self.linear(x) * self.calls


@pytest.mark.parametrize(
    ("buffer", "says"), [(False, "keeps state between calls"), (True, "change from call to call because count does")]
)
def test_results_that_depend_on_the_calls_before_are_no_randomness(buffer: bool, says: str) -> None:
    w = replace(workload(), model=lambda: Counts(buffer), mode="infer")
    with pytest.raises(WorkloadError, match=says):
        audit(w, CPU)


def test_results_that_numpy_has_no_dtype_for_are_compared_too() -> None:
    class Narrow(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).bfloat16()

    w = replace(workload(), model=Narrow)
    found = verify(w, Plan(), CPU, lambda model, at: Step(w if active(model) else without_dropout(w), model, at, CPU))
    assert found.record().passed


def test_elements_that_only_rounding_moves_are_not_asked() -> None:
    """The gradient of a key's bias is zero: what is left of it is another program's rounding, beside queries and values that drop."""
    random = np.random.default_rng(3)

    def runs(rounding: float, scale: float = 1.0) -> np.ndarray:
        drops = 1e-3 * random.normal(1.0, 0.3 * scale, (RUNS, 64))
        return np.concatenate([drops, rounding * (1 + random.random((RUNS, 32)))], axis=1)

    assert _most_different({"bias": (runs(1e-9), runs(-3e-9))}) is None
    assert _most_different({"bias": (runs(1e-9), runs(1e-9, scale=3.0))}) == "bias"
    assert _most_different({"bias": (runs(1e-4), runs(-3e-4))}) == "bias"
