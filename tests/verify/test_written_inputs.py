"""A forward that writes to its inputs, as a decoder writes its cache: what it leaves there is compared like an output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.errors import WorkloadError
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
    assert any(check.what.startswith("input ['cache']") for check in found.checks if not check.passed)


def test_only_what_the_workload_writes_may_be_written() -> None:
    class Reads(Decoder):
        def write(self, cache: torch.Tensor, keys: torch.Tensor) -> None:
            pass

    found = verify(Workload("reads", Reads, inputs), Plan(), CPU, built(Decoder))
    assert any("the candidate changes its inputs" in one for one in found.failures)


class Step8(nn.Module):
    """Decodes a token: writes to the ninth position of what it is given. `wrong` does something else there."""

    wrong = ""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embedding(tokens[:, :8]).mean(1))
        if self.wrong != "tokens":
            tokens[:, 8] = logits.argmax(-1)
        seen[:, 8] = self.wrong != "seen"
        seen[:, 9:200] = True
        wrong_in_bf16 = self.wrong if torch.is_autocast_enabled("cpu") else ""
        keys[:, 8] = logits * (1.1 if wrong_in_bf16 == "keys" else 1.0)
        if wrong_in_bf16 == "more keys":
            keys[:, 9] = logits
        return logits


def long_caches(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "tokens": torch.randint(0, 64, (2, 4096), generator=generator),
        "seen": torch.zeros(2, 4096, dtype=torch.bool),
        "keys": torch.randn(2, 4096, 64, generator=generator),
    }


DECODES = Workload("decodes", Step8, long_caches, one_shape=True)


def changed(given: Workload, wrong: Any) -> Callable[[nn.Module, Plan], Step]:
    def build(model: nn.Module, plan: Plan) -> Step:
        model.wrong = wrong
        return Step(given, model, plan, CPU)

    return build


@pytest.mark.parametrize(
    ("wrong", "plan", "says"),
    [
        ("tokens", Plan(), "does not write to input ['tokens']"),
        ("seen", Plan(), "input ['seen'] differs in 2 of 8192 values"),
        ("keys", Plan(bf16=True), "input ['keys'] is off by"),
        ("more keys", Plan(bf16=True), "input ['keys'] (elements that the candidate alone writes) is off by"),
    ],
)
def test_little_that_is_written_to_a_large_input_does_not_drown(wrong: str, plan: Plan, says: str) -> None:
    untouched = verify(DECODES, plan, CPU)
    assert not untouched.wrong, untouched.record().failures
    found = verify(DECODES, plan, CPU, changed(DECODES, wrong)).record().failures
    assert any(says in one for one in found), found


class Opens(nn.Module):
    """Writes to inputs that hold -inf: opens a place of a mask and raises some running maxima."""

    wrong = ""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        mask[:, 2] = 1e-3 if self.wrong == "mask" else 0.0
        mask[:, 1] = math.inf if self.wrong == "sign" else -math.inf
        top[:4].copy_(torch.maximum(top[:4], y * 1.5 if self.wrong == "top" else y))
        if self.wrong == "more":
            top[4] = 0.0
        return y * mask.exp()


def infinite(seed: int) -> dict[str, torch.Tensor]:
    mask = torch.full((4, WIDTH), -math.inf)
    mask[:, :2] = 0.0
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
    return {"x": x, "mask": mask, "top": torch.full((8, WIDTH), -math.inf)}


OPENS = Workload("opens", Opens, infinite, one_shape=True)


def test_infinite_elements_of_written_inputs_are_compared() -> None:
    audit(OPENS, CPU)
    found = verify(OPENS, Plan(), CPU)
    assert not found.wrong, found.record().failures


@pytest.mark.parametrize(("wrong", "where"), [("mask", "mask"), ("sign", "mask"), ("top", "top"), ("more", "top")])
def test_other_elements_beside_infinite_ones_are_refused(wrong: str, where: str) -> None:
    found = verify(OPENS, Plan(), CPU, changed(OPENS, wrong))
    assert any(f"input ['{where}']" in check.what for check in found.checks if not check.passed), found.failures


class ReadsAnother(nn.Module):
    """Writes to one input and reads the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return self.layer(y)


def both(of: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Workload:
    def pair(seed: int) -> dict[str, torch.Tensor]:
        x, y = of(torch.randn(4, 2 * WIDTH, generator=torch.Generator().manual_seed(seed)))
        return {"x": x, "y": y}

    return Workload("reads another", ReadsAnother, pair, one_shape=True)


@pytest.mark.parametrize(
    "of", [lambda t: (t[:, :WIDTH],) * 2, lambda t: (t, t[:, 4 : 4 + WIDTH])], ids=["one tensor", "a view"]
)
def test_a_write_that_another_input_shows_is_refused(of: Any) -> None:
    with pytest.raises(WorkloadError, match=r"writes to its input \['x'\], which shares memory with its input \['y'\]"):
        audit(both(of), CPU)


def test_a_write_that_another_input_shows_on_another_shape_is_refused() -> None:
    apart, one = both(lambda t: t.chunk(2, -1)), both(lambda t: (t[:, :WIDTH],) * 2)  # type: ignore[arg-type,return-value]
    given = replace(apart, one_shape=False, other_shapes=(one.inputs,))
    with pytest.raises(WorkloadError, match=r"writes to its input \['x'\], which shares memory with its input \['y'\]"):
        audit(given, CPU)


def test_parts_of_one_storage_may_be_written() -> None:
    given = both(lambda t: t.chunk(2, -1))  # type: ignore[arg-type,return-value]
    audit(given, CPU)
    assert not verify(given, Plan(), CPU).wrong


def test_an_input_with_a_history_may_be_written_in_training() -> None:
    class Doubles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.mul_(2.0))

    def computed(seed: int) -> torch.Tensor:
        return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed), requires_grad=True) * 1.0

    given = training(Workload("computed", Doubles, computed))  # type: ignore[arg-type]
    audit(given, CPU)
    assert not verify(given, Plan(), CPU).wrong
