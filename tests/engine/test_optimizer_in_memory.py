"""A captured optimizer reads its learning rate from memory: one that asks for its value waits for the GPU, and a graph
cannot hold that. A CPU has no captures; what would wait is an operation that a CPU can refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rung.engine.optimizer import can_be_captured, rebuild

RATE = 0.1
# Adagrad, LBFGS and others have no capturable form; ASGD's and Rprop's make tensors where there is no GPU.
FAKED = [optim.Adadelta, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop]


class NoWaiting(TorchDispatchMode):
    """Refuses to bring a value to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("it waits for the GPU")
        return func(*args, **(kwargs or {}))


def ready(kind: type[optim.Optimizer], device: str, **options: Any) -> tuple[list[nn.Parameter], optim.Optimizer]:
    """Parameters with gradients, and the optimizer as capture has it after its warm calls."""
    parameters = [nn.Parameter(torch.ones(4, 4, device=device)) for _ in range(3)]
    made = kind(parameters, lr=RATE, **options)  # type: ignore[call-arg]
    assert can_be_captured(made)
    made = rebuild(made, fused=False, capturable=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    made.step()
    return parameters, made


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"foreach": True}, {"foreach": False}], ids=str)
def test_sgd_steps_at_the_rate_that_lies_in_memory(options: dict[str, Any]) -> None:
    plain = ready(optim.SGD, "cpu", **options)
    parameters, made = ready(optim.SGD, "cpu", **options)
    made.param_groups[0]["lr"] = torch.tensor(RATE / 2)
    with NoWaiting():
        made.step()
    plain[1].param_groups[0]["lr"] = RATE / 2
    plain[1].step()
    torch.testing.assert_close(parameters, plain[0])


@pytest.mark.parametrize("kind", FAKED, ids=lambda kind: kind.__name__)
def test_no_other_asks_for_the_value_of_its_rate(kind: type[optim.Optimizer]) -> None:
    with FakeTensorMode():  # asking for a value raises
        _, made = ready(kind, "cuda")
        made.param_groups[0]["lr"] = torch.tensor(RATE, device="cuda")
        made.step()


def test_an_optimizer_keeps_its_own_forms_where_it_is_not_captured() -> None:
    parameters = [nn.Parameter(torch.ones(4))]
    made = optim.SGD(parameters, lr=RATE, foreach=True)
    assert rebuild(made, fused=False, capturable=False) is made
