"""A workload that is put together wrongly is refused where it is made, with what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rung import Workload
from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.workload import seeded_model
from rung.workload.base import refuse_other_arguments, shapes


def batch(seed: int) -> torch.Tensor:
    return torch.full((2, 3), float(seed))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        pytest.param({"model": torch.nn.Linear(3, 3)}, "model is a Linear; .* model=lambda: Net", id="a-module"),
        pytest.param({"model": torch.nn.Linear}, "model is a function of other arguments", id="a-class-with-arguments"),
        pytest.param({"inputs": torch.ones(2, 3)}, "inputs is a Tensor; .* inputs=lambda seed", id="a-tensor"),
        pytest.param({"inputs": lambda: torch.ones(2, 3)}, "inputs is a function of other arguments", id="no-seed"),
    ],
)
def test_the_thing_itself_instead_of_its_maker_is_refused(wrong: dict[str, object], says: str) -> None:
    good: dict[str, object] = {"name": "mine", "model": lambda: torch.nn.Linear(3, 3), "inputs": batch}
    with pytest.raises(WorkloadError, match=f"workload 'mine': {says}"):
        Workload(**(good | wrong))


@pytest.mark.parametrize(
    "model", [functools.partial(torch.nn.Linear, 3, 3), torch.nn.Identity], ids=["partial", "class"]
)
def test_any_maker_will_do(model: object) -> None:
    Workload(name="mine", model=model, inputs=batch)


@pytest.mark.parametrize(("given", "lacks"), [("loss", "optimizer"), ("optimizer", "loss")])
def test_half_of_what_training_needs_is_refused_where_no_mode_is_named(given: str, lacks: str) -> None:
    half = {given: lambda *any_: None}
    with pytest.raises(WorkloadError, match=f"an? {given} and no {lacks}; give both, to train, or mode='infer'"):
        Workload("half", lambda: None, lambda seed: None, **half)  # type: ignore[arg-type, return-value]
    assert Workload("half", lambda: None, lambda seed: None, mode="infer", **half).mode == "infer"  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (
            {"loss": lambda output: output.sum()},
            "loss is called with the output and the batch, .* write it as in loss=lambda output, batch",
        ),
        ({"loss": lambda output, x, y: output.sum()}, "missing a required argument: 'y'"),
        ({"optimizer": lambda: None}, "optimizer is called with the parameters, .* optimizer=lambda parameters"),
    ],
)
def test_a_loss_and_an_optimizer_of_other_arguments_are_refused(odd: dict[str, Any], why: str) -> None:
    given = {"loss": lambda output, batch: output.sum(), "optimizer": torch.optim.SGD, **odd}
    with pytest.raises(WorkloadError, match=why):
        Workload("odd", torch.nn.Identity, batch, **given)


@pytest.mark.parametrize(
    ("loss", "what"),
    [(lambda output, batch: output, r"a tensor of shape \(4, 3\)"), (lambda output, batch: 1.0, "a float")],
)
def test_a_loss_that_is_no_number_is_refused(loss: Any, what: str) -> None:
    odd = Workload(
        "odd",
        lambda: torch.nn.Linear(8, 3),
        lambda seed: torch.randn(4, 8),
        loss=loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    with pytest.raises(WorkloadError, match=rf"loss\(output, batch\) gives {what}; it must give one number"):
        Step(odd, seeded_model(odd), Plan(), pick("cpu"))(odd.inputs(0))


def test_a_mode_that_is_left_out_is_told_by_what_is_given() -> None:
    given = {"name": "mine", "model": torch.nn.Identity, "inputs": batch}
    training = {"loss": lambda output, batch: output.sum(), "optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
    assert Workload(**given).mode == "infer"
    assert Workload(**given, **training).mode == "train"
    assert Workload(**given, **training, mode="infer").mode == "infer"
    with pytest.raises(WorkloadError, match="mode is 'fast'"):
        Workload(**given, mode="fast")


@pytest.mark.parametrize("kind", [nn.Linear, nn.Embedding])
def test_a_model_without_content_is_refused(kind: Callable[[int, int], nn.Module]) -> None:
    def model() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Identity(), kind(4, 4))

    empty = Workload("empty", model, lambda seed: {"x": torch.ones(2, 4)})
    with pytest.raises(
        WorkloadError, match=r"1\.weight of the model is on the meta device, .*make the model on the CPU"
    ):
        seeded_model(empty)


def test_a_model_whose_parameters_have_no_shape_yet_is_refused_and_one_that_was_called_is_not() -> None:
    def made(called: bool) -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
        if called:
            model(torch.ones(2, 3))
        return model

    def workload(called: bool) -> Workload:
        return Workload("lazy", lambda: made(called), lambda seed: {"x": torch.ones(2, 3)})

    with pytest.raises(WorkloadError, match=r"0\.weight of the model has no shape .*call the model once"):
        seeded_model(workload(False))
    assert seeded_model(workload(True))[0].weight.shape == (4, 3)


def test_an_exported_model_stays_in_its_mode_and_what_is_around_it_is_switched() -> None:
    def made() -> nn.Module:
        exported = torch.export.export(nn.Dropout(0.5).eval(), (torch.ones(2, 3),)).module()
        return nn.Sequential(nn.Dropout(0.5), exported, nn.Dropout(0.5))

    model = seeded_model(Workload("exported", made, batch))
    assert [part.training for part in model] == [False, True, False]
    assert torch.equal(model(torch.ones(2, 3)), torch.ones(2, 3))
    assert torch.equal(seeded_model(Workload("itself", lambda: made()[1], batch))(torch.ones(2, 3)), torch.ones(2, 3))


class Pair(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return query @ key.T


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (torch.ones(2, 3), r"a Tensor, and Pair.forward\(query, key, mask\) .*missing a required argument: 'key'"),
        ((torch.ones(2, 3),) * 4, "a tuple of 4, .*too many positional arguments"),
        ({"query": 0, "values": 0}, "a dict of 2, .*missing a required argument: 'key'"),
        ((torch.ones(2, 3),) * 2, ""),
        ({"query": 0, "key": 0, "mask": 0}, ""),
    ],
)
def test_a_model_that_would_be_called_with_arguments_that_it_does_not_take_is_refused(given: object, why: str) -> None:
    plain = Workload("pair", Pair, lambda seed: given)
    if why:
        with pytest.raises(WorkloadError, match=rf"workload 'pair': inputs\(seed\) gives {why}.*Workload\(forward="):
            refuse_other_arguments(plain, Pair(), given)
    else:
        refuse_other_arguments(plain, Pair(), given)
    refuse_other_arguments(Workload("own", Pair, lambda seed: given, lambda model, batch: 0), Pair(), given)


def test_a_hook_may_change_what_a_model_is_called_with() -> None:
    hooked = Pair()
    hooked.register_forward_pre_hook(lambda module, given: (*given, *given))
    refuse_other_arguments(Workload("hooked", Pair, batch), hooked, batch(0))


def test_a_derived_shape_keeps_the_layout() -> None:
    w = Workload(
        "images",
        lambda: torch.nn.Conv2d(3, 4, 3),
        lambda seed: torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).to(
            memory_format=torch.channels_last
        ),
    )
    _, derived = shapes(w)
    assert derived(1).shape[0] == 3
    assert derived(1).is_contiguous(memory_format=torch.channels_last)
