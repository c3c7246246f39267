"""A model with hooks on the gradients of its parameters: what is compared has them, too."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model
from rung.workload.copy_model import copy_model

CPU = pick("cpu")


def _halved(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


HANG: dict[str, Callable[[nn.Parameter], object]] = {
    "on a gradient": lambda p: p.register_hook(lambda gradient: gradient * 0.5),
    "behind a gradient": lambda p: p.register_post_accumulate_grad_hook(_halved),
}


def workload(hang: Callable[[nn.Parameter], object]) -> Workload:
    """The first layer learns half as fast."""

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        hang(made[0].weight)
        return made

    return Workload(
        "hooked", model, lambda seed: torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)),
        mode="train", loss=lambda output, batch: output.square().mean(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip


@pytest.mark.parametrize("hang", HANG.values(), ids=HANG)
def test_a_copy_has_the_hooks(hang: Callable[[nn.Parameter], object]) -> None:
    own = workload(hang)
    model = seeded_model(own)
    gradients = []
    for each in (model, copy_model(model), copy_model(copy_model(model))):
        each(own.inputs(0)).square().mean().backward()
        gradients.append(each[0].weight.grad)
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


def test_a_frozen_weight_keeps_its_hooks_to_itself() -> None:
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda gradient: gradient * 0.5)
    model.weight.requires_grad_(False)
    assert not copy_model(model).weight._backward_hooks


@pytest.mark.parametrize("hang", HANG.values(), ids=HANG)
def test_who_runs_the_hooks_passes_and_who_leaves_them_out_does_not(hang: Callable[[nn.Parameter], object]) -> None:
    found = verify(workload(hang), Plan(fused_optimizer=True), CPU)
    assert found.passed, found.failures

    def without(model: nn.Module, plan: Plan) -> Step:
        for parameter in model.parameters():
            for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
                (hooks or {}).clear()
        return Step(workload(hang), model, plan, CPU)

    wrong = verify(workload(hang), Plan(fused_optimizer=True), CPU, build=without)
    assert not wrong.passed
    assert "0.weight" in wrong.record().failures[0]
