"""A forward that writes to its inputs, as a decoder writes its cache: what it leaves there is compared like an output."""

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


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(WIDTH, WIDTH)

    def write(self, cache: torch.Tensor, keys: torch.Tensor) -> None:
        cache[:, 2] = keys

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        x -= x.mean(0)
        keys = self.keys(x)
        self.write(cache, keys)
        return keys + (cache[:, :2] @ x[:, :, None])[..., 0].mean(-1, keepdim=True)


class Forgets(Decoder):
    def write(self, cache: torch.Tensor, keys: torch.Tensor) -> None:
        pass


class ElsewhereToo(Decoder):
    def write(self, cache: torch.Tensor, keys: torch.Tensor) -> None:
        super().write(cache, keys)
        cache[:, 3] = keys


class Off(Decoder):
    def write(self, cache: torch.Tensor, keys: torch.Tensor) -> None:
        super().write(cache, 1.001 * keys)


def inputs(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(16, WIDTH, generator=generator),
        "cache": torch.randn(16, 4, WIDTH, generator=generator),
    }


def training(given: Workload) -> Workload:
    return Workload(
        given.name,
        given.model,
        given.inputs,
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


INFERENCE = Workload("decoder", Decoder, inputs)
POPS = Workload("pops", Decoder, inputs, lambda model, batch: model(batch.pop("x"), batch.pop("cache")))


def built(kind: type[Decoder]) -> Callable[[nn.Module, Plan], Step]:
    def build(model: nn.Module, plan: Plan) -> Step:
        other: Any = kind()
        other.load_state_dict(model.state_dict())
        return Step(INFERENCE, other.eval(), plan, CPU)

    return build


@pytest.mark.parametrize("given", [INFERENCE, training(INFERENCE), POPS], ids=["infer", "train", "pops"])
def test_the_untouched_model_passes(given: Workload) -> None:
    audit(given, CPU)
    found = verify(given, Plan(), CPU)
    assert not found.wrong, found.failures
    assert {"input ['x']", "input ['cache']"} <= {check.what for check in found.checks}


@pytest.mark.parametrize("kind", [Forgets, ElsewhereToo, Off])
def test_a_candidate_that_leaves_other_inputs_is_refused(kind: type[Decoder]) -> None:
    found = verify(INFERENCE, Plan(), CPU, built(kind))
    assert "input ['cache']" in {check.what for check in found.checks if not check.passed}


def test_only_what_the_workload_writes_may_be_written() -> None:
    class Reads(Decoder):
        def write(self, cache: torch.Tensor, keys: torch.Tensor) -> None:
            pass

    found = verify(Workload("reads", Reads, inputs), Plan(), CPU, built(Decoder))
    assert any("the candidate changes its inputs" in one for one in found.failures)
