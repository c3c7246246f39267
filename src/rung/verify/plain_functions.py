"""Do two functions compute the same? Each is verified as a model without weights, on inputs made anew from seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware.device import Device, to_device
from rung.plan import Numerics, Plan
from rung.verify.audit import audit, one_shape_only
from rung.verify.reference import LOW
from rung.verify.verdict import Verification
from rung.verify.verify import verify
from rung.workload import Workload, call_model

Inputs = Callable[[int], Any]
LEARNING_RATE = 1e-2  # of the steps that a verification of training takes; the inputs move, so that gradients are asked at other places


class _Called(nn.Module):
    """A function as a model. With gradients, each floating-point input has a parameter of its shape added to it: its gradient is the
    input's."""

    def __init__(self, call: Callable[..., Any], example: Any) -> None:
        super().__init__()
        leaves, _ = pytree.tree_flatten(example)
        self._call = call
        moved = [t for t in leaves if _moves(t)] if example is not None else []
        self.moves = nn.ParameterList([nn.Parameter(torch.zeros_like(t)) for t in moved])

    def forward(self, batch: Any) -> Any:
        moves = iter(self.moves)
        leaves, spec = pytree.tree_flatten(batch)
        moved = [t + next(moves).to(t.dtype) if len(self.moves) and _moves(t) else t for t in leaves]
        return call_model(self._call, pytree.tree_unflatten(moved, spec))


class NothingToDifferentiate(Exception):
    """Gradients are asked of a function whose output has none. It refuses the first function, and any other is not equal."""


class _FunctionWorkload(Workload):
    """A function as a workload; a refusal calls it what it is."""

    kind = "function"


def same_results(
    calls: Mapping[str, Callable[..., Any]], inputs: Inputs, device: Device, gradients: bool
) -> tuple[Verification, str]:
    """Whether every function gives what the first one gives; and the name of the first that does not, or "".

    inputs: makes the arguments of a seed: a tensor, a tuple or list (by position) or a dict (by name); other seeds must give other numbers
    of the same shapes. gradients: those of all floating-point inputs are compared, too, by sums of the outputs with fixed weights.
    Raises WorkloadError where the first function cannot be asked: it raises, is not finite, or does not depend on its inputs alone.
    """
    names = list(calls)
    reference = as_workload(names[0], calls[names[0]], inputs, gradients)
    reference = replace(reference, one_shape=gradients or bool(one_shape_only(reference, device)))
    half = in_half_precision(inputs)
    try:
        audit(reference, device, full_precision_too=not half)
    except NothingToDifferentiate as error:
        raise WorkloadError(f"{reference.label}: {error}") from error
    # A kernel for half precision need not run in another: it is judged by what the first function is off at that precision.
    precisions: list[Numerics] | None = ["bf16"] if half else None
    batch = to_device(inputs(1), device)
    kinds = _kinds(call_model(calls[names[0]], batch))
    verification = Verification()
    for name in names[1:]:
        other = replace(as_workload(name, calls[name], inputs, gradients), one_shape=reference.one_shape)

        def built(model: nn.Module, plan: Plan, other: Workload = other) -> Step:
            made = other.model().to(device.torch_name)
            made.load_state_dict(model.state_dict())
            return Step(other, made, plan, device)

        verification = verify(reference, Plan(), device, built, precisions)
        if verification.passed and (others := _kinds(call_model(calls[name], batch)) - kinds):
            verification.failures.append(
                f"its output is a {others.pop().__name__}, which may compute only when it is read; return a torch.Tensor."
            )
        if not verification.passed:
            return verification, name
    return verification, ""


def in_half_precision(inputs: Inputs) -> bool:
    return any(t.dtype in LOW for t in pytree.tree_leaves(inputs(1)) if isinstance(t, torch.Tensor))


def _kinds(output: Any) -> set[type]:
    """Classes of the output's tensors beside torch's own: what these do, and when, is theirs to say."""
    kinds = {type(t) for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor)}
    return kinds - {torch.Tensor, nn.Parameter}


def as_workload(name: str, call: Callable[..., Any], inputs: Inputs, gradients: bool) -> Workload:
    """A function as a workload without weights."""

    def loss(output: Any, batch: Any) -> torch.Tensor:
        """A sum of all outputs with weights that are the same at every call, so that no element's gradient cancels another's."""
        floats = [t for t in pytree.tree_leaves(output) if _moves(t)]
        if not floats:
            raise NothingToDifferentiate(
                "its output holds no tensor of floating-point numbers, so there are no gradients to compare; return what it computes as "
                "tensors, or compare results alone."
            )
        return torch.stack([(t * _weights(t)).sum() for t in floats]).sum()

    return _FunctionWorkload(
        name, lambda: _Called(call, inputs(1) if gradients else None), inputs, lambda model, batch: model(batch), mode="train" if gradients else "infer",
        loss=loss if gradients else None,
        optimizer=(lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE)) if gradients else None,
    )  # fmt: skip


def _moves(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _weights(like: torch.Tensor) -> torch.Tensor:
    """Numbers in [0.5, 1.5) that follow no pattern, in the shape of a tensor."""
    numbers = torch.arange(like.numel(), device=like.device, dtype=torch.float32).reshape(like.shape)
    return (0.5 + torch.frac(numbers * 0.6180339887)).to(like.dtype)
