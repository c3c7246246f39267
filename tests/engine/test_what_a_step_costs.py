"""What Rung adds to a step that its author wrote: next to nothing, or candidates would be compared with it."""

import sys
from collections import namedtuple
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import rung
from rung.engine.parts import parts
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.workload import Workload, seeded_model

Both = namedtuple("Both", "logits hidden")


class Model(nn.Module):
    def __init__(self, made: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.made = nn.Linear(4, 4), made

    def forward(self, x: torch.Tensor) -> Any:
        return self.made(self.layer(x))


def workload(made: Callable[[torch.Tensor], Any], **training: Any) -> Workload:
    return Workload("small", lambda: Model(made), lambda seed: torch.randn(2, 4), **training)


def calls(run: Callable[[Any], Any], batch: Any) -> int:
    """How many functions a call goes through, of Python and of C: unlike its time, the same on a busy machine."""
    run(batch)
    count = 0

    def counted(frame: FrameType, event: str, what: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        run(batch)
    finally:
        sys.setprofile(before)
    return count


KINDS = {
    "a tensor": (lambda y: y, 12),
    "a tuple": (lambda y: (y, y), 18),
    "a dict": (lambda y: {"logits": y, "hidden": y}, 20),
    "a named tuple": (lambda y: Both(y, y), 25),
}


@pytest.mark.parametrize(("made", "most"), KINDS.values(), ids=KINDS)
def test_an_untouched_forward_costs_what_its_author_pays(made: Callable[[torch.Tensor], Any], most: int) -> None:
    w = workload(made)
    model, batch = seeded_model(w), w.inputs(0)

    def own(batch: Any) -> Any:
        with torch.no_grad():
            return w.forward(model, batch)

    assert calls(Step(w, model, Plan(), pick("cpu")), batch) - calls(own, batch) <= most


def test_so_does_an_untouched_training_step() -> None:
    w = workload(
        lambda y: y,
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert w.loss
    assert w.optimizer
    model, batch = seeded_model(w), w.inputs(0)
    optimizer = w.optimizer(model.parameters())

    def own(batch: Any) -> Any:
        optimizer.zero_grad()
        output = w.forward(model, batch)
        loss = w.loss(output, batch)
        loss.backward()
        optimizer.step()
        return loss.detach(), output

    assert calls(Step(w, model, Plan(), pick("cpu")), batch) - calls(own, batch) <= 34


def test_a_recipe_that_compiles_nothing_looks_at_no_shapes() -> None:
    model = Model(lambda y: y).eval()
    applied = rung.apply(model, "fused-optimizer")
    assert calls(applied, torch.randn(2, 4)) - calls(model, torch.randn(2, 4)) <= 12


@pytest.mark.parametrize("made", [made for made, _ in KINDS.values()], ids=KINDS)
def test_no_gradient_goes_out_with_an_output(made: Callable[[torch.Tensor], Any]) -> None:
    """A forward that turns gradients on by itself keeps them until it is through."""

    def with_gradients(y: torch.Tensor) -> Any:
        with torch.enable_grad():
            return made(y.requires_grad_() * 2)

    w = workload(with_gradients)
    output = Step(w, seeded_model(w), Plan(), pick("cpu"))(w.inputs(0))[1]
    assert type(output) is type(made(torch.ones(1)))
    assert not any(tensor.requires_grad for _, tensor in parts(output)[0])
