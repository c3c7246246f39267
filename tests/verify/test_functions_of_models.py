"""Models that keep functions which hold on to them: a copy computes with its own weights, and notes what it notes for itself."""

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.audit import audit
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model
from rung.workload.copy_model import copy_model

CPU = pick("cpu")


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))


class Lambda(nn.Module):
    """A lambda in a list that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _layers()
        self.stages = [lambda x: self.layers(x)]

    def forward(self, x: torch.Tensor) -> Any:
        return self.stages[0](x)


class Noted(nn.Module):
    """A hook notes what a layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _layers()
        self.seen: dict[str, torch.Tensor] = {}

        def note(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.seen["first"] = output

        self.layers[0].register_forward_hook(note)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x), self.seen["first"]


class NotedByMaker(Noted):
    """So does one that knows the dict alone."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.layers = _layers()
        self.seen = {}
        self.layers[0].register_forward_hook(_saver(self.seen, "first"))


def _saver(store: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    def note(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        store[name] = output

    return note


def exchanged() -> nn.Module:
    """Another forward was put on the model; it calls the one before, from a table that it alone has, and itself."""
    model = _layers()
    before = {"forward": model.forward}

    def forward(x: torch.Tensor, again: bool = True) -> Any:
        return forward(x, again=False) * 2 if again else before["forward"](x)

    model.forward = forward  # type: ignore[method-assign]
    return model


def exchanged_methods() -> nn.Module:
    """Others are methods, partial functions, and functions with a default argument."""
    model = _layers()
    before = model[0].forward

    def forward(self: nn.Linear, x: torch.Tensor) -> Any:
        return before(x) * self.out_features / 16

    model[0].forward = types.MethodType(forward, model[0])  # type: ignore[method-assign]
    model[1].forward = lambda x, gelu=model[1].forward: gelu(x) + 1  # type: ignore[method-assign]
    model[2].forward = functools.partial(lambda old, x: old(x) + 1, model[2].forward)  # type: ignore[method-assign]
    return model


def gradient_scaled() -> nn.Module:
    """A hook on a gradient reads another weight."""
    model = _layers()
    model[0].weight.register_hook(lambda gradient: gradient * model[2].weight.detach().abs().mean())
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lambda": Lambda,
    "noted": Noted,
    "noted by a maker": NotedByMaker,
    "exchanged forward": exchanged,
    "exchanged methods": exchanged_methods,
    "scaled gradient": gradient_scaled,
}


def _loss(output: Any, batch: torch.Tensor) -> torch.Tensor:
    outputs = output if isinstance(output, tuple) else (output,)
    return torch.stack([F.mse_loss(o, torch.ones_like(o)) for o in outputs]).sum()


def workload(model: Callable[[], nn.Module], mode: str) -> Workload:
    training: dict[str, Any] = {"loss": _loss, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
    return Workload(
        "functions", model, lambda seed: torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)),
        **(training if mode == "train" else {}),
    )  # fmt: skip


def _ran(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = _loss(model(batch), batch)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_copy_computes_with_its_own_weights(make: Callable[[], nn.Module]) -> None:
    own = workload(make, "train")
    model, batch = seeded_model(own), own.inputs(0)
    expected = _ran(model, batch)
    copy = copy_model(copy_model(model))
    assert len(expected) == 1 + len([*model.parameters()])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    assert all(torch.equal(a, b) for a, b in zip(expected, _ran(copy, batch), strict=True))


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_it_is_verified(make: Callable[[], nn.Module], mode: str) -> None:
    own = workload(make, mode)
    assert audit(own, CPU) == []
    found = verify(own, Plan(), CPU)
    assert found.passed, found.record()
    assert found.reference == "float64"


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_candidate_that_trains_nothing_is_refused(make: Callable[[], nn.Module]) -> None:
    own = workload(make, "train")

    class WithoutGradients(Step):
        def __call__(self, batch: Any) -> Any:
            with torch.no_grad():
                output = own.forward(self.model, batch)
                return _loss(output, batch), output

    found = verify(own, Plan(), CPU, lambda model, plan: WithoutGradients(own, model, plan, CPU))
    assert not found.passed
    assert not any("raised" in failure for failure in found.failures)


GLOBAL: dict[str, nn.Module] = {}


def of_a_global() -> nn.Module:
    model = GLOBAL["model"] = _layers()
    model.forward = lambda x: GLOBAL["model"][0](x)  # type: ignore[method-assign]
    return model


def test_a_function_that_finds_the_model_elsewhere_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"computes with the weights of the model that was copied.*lambda"):
        audit(workload(of_a_global, "train"), CPU)


def test_a_forward_that_raises_by_itself_is_told_as_before() -> None:
    def model() -> nn.Module:
        made = _layers()
        made.forward = lambda x: made(x[:, :2])  # type: ignore[method-assign]
        return made

    with pytest.raises(RecursionError):
        audit(workload(model, "train"), CPU)


def test_what_a_copy_shares_is_left_as_it_is() -> None:
    """A table of another's functions is the original's, too."""
    table = {"act": F.gelu}

    class Shared:
        def __deepcopy__(self, memo: dict[int, Any]) -> "Shared":
            return self

    model = _layers()
    model.shared, model.table = Shared(), table
    model.shared.run = lambda: model[0]  # type: ignore[union-attr, assignment]
    copy = copy_model(model)
    assert copy.shared is model.shared
    assert model.shared.run() is model[0]  # type: ignore[union-attr, operator]
    assert copy.table == {"act": F.gelu}
