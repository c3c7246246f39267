"""Batches whose tensors torch's pytree does not find: what is said, and that a class is taken once it is registered."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from rung.errors import UsageError, WorkloadError
from rung.hardware import pick
from rung.verify.audit import audit
from rung.workload import Workload
from rung.workload.hidden_tensors import hidden_tensors
from rung.workload.live import workload_of

CPU = pick("cpu")


@dataclass
class Graph:
    x: torch.Tensor
    count: int = 1


@dataclass(frozen=True)
class Slots:
    __slots__ = ("x",)
    x: torch.Tensor


@dataclass
class Registered:
    x: torch.Tensor


torch.export.register_dataclass(Registered)


class Sample(NamedTuple):
    x: torch.Tensor
    note: object


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def reading(make: Any) -> Workload:
    return Workload("hidden", lambda: nn.Linear(4, 2), make, lambda model, batch: model(batch.x))


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda seed: Graph(drawn(seed)), "register the class where it is defined, by torch.export.register_dataclass(Graph)"),
        (lambda seed: SimpleNamespace(x=drawn(seed)), "have forward make a SimpleNamespace of them"),
    ],
)  # fmt: skip
def test_a_batch_whose_tensors_nothing_would_move_or_compare_is_refused(make: Any, instead: str) -> None:
    with pytest.raises(WorkloadError, match="in which torch's pytree finds no tensors") as caught:
        audit(reading(make), CPU)
    assert instead in str(caught.value)


def test_a_registered_dataclass_is_a_batch_like_any_other() -> None:
    audit(reading(lambda seed: Registered(drawn(seed))), CPU)
    with pytest.raises(WorkloadError, match="inputs must depend on the seed"):
        audit(reading(lambda seed: Registered(drawn(0))), CPU)


def test_hidden_tensors_are_found_in_items_fields_and_attributes() -> None:
    tensor = torch.ones(2)
    assert "a UserDict" in hidden_tensors(UserDict(x=tensor))
    assert "dict(...)" in hidden_tensors(UserDict(x=tensor))
    assert "a Slots" in hidden_tensors({"graph": Slots(tensor)})
    assert "a SimpleNamespace" in hidden_tensors([tensor, SimpleNamespace(store=SimpleNamespace(values={"x": tensor}))])
    assert not hidden_tensors({"x": tensor, "sample": Sample(tensor, None), "name": "a", "ids": [1, 2.0]})
    assert not hidden_tensors(SimpleNamespace(seed=3))


def test_a_live_batch_may_be_of_a_registered_class() -> None:
    made = workload_of(nn.Linear(4, 2), Registered(drawn(0)), forward=lambda model, batch: model(batch.x)).inputs(3)
    assert isinstance(made, Registered)
    assert not torch.equal(made.x, drawn(0))
    with pytest.raises(UsageError, match=r"register_dataclass\(Graph\)"):
        workload_of(nn.Linear(4, 2), Graph(drawn(0)))
