"""A recipe on a user's own model, in the user's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.errors import UsageError
from rung.hardware import pick
from rung.hardware.device import Device, autocast
from rung.ladder.capture import Captured
from rung.ladder.plan import Plan
from rung.ladder.recipe import Recipe
from rung.ladder.rungs import plan_of
from rung.ladder.step import Step
from rung.ladder.surgery import Surgeon
from rung.workload import Workload, call_model, seeded_model
from rung.workload.base import Mode


class Applied:
    """A model under a recipe: call it as you call the model; `step(batch)` runs a whole training step.

    `model` is the object that was given, its class, state dict and hooks untouched: save and load that one.
    `pending` names the rungs that are not in effect, because they need `loss` and `optimizer`.
    With `capture` in the recipe, results are overwritten by the next call: clone what you keep.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan, device: Device, step: Step | None) -> None:
        self.model = model
        self._plan, self._device, self._step = plan, device, step
        self._precision = torch.get_float32_matmul_precision()
        self.pending: tuple[str, ...] = ()
        if plan.tf32:
            torch.set_float32_matmul_precision("high")

        def forward(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
            with autocast(device, torch.bfloat16 if plan.bf16 else None):
                return model(*arguments[0], **arguments[1])

        self._call: Callable[[Any], Any] = forward
        if plan.compile or plan.passes:
            surgeon = Surgeon(plan.passes, inner="inductor" if plan.compile else "eager")
            self._call = torch.compile(forward, backend=surgeon, dynamic=False)
        self._captured: Captured | None = None
        if plan.capture:
            self._captured = Captured(self._call, device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._captured and not torch.is_grad_enabled():
            return self._captured((args, kwargs))
        return self._call((args, kwargs))

    def step(self, batch: Any) -> Any:
        """One whole step: `(loss, output)` in training, the output in inference."""
        if self._step is None:
            with torch.no_grad():
                return self(**batch) if isinstance(batch, dict) else call_model(self, batch)
        loss, output = self._step(batch)
        return output if loss is None else (loss, output)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that `step` uses; a scheduler may change its groups' learning rates."""
        return self._step.optimizer if self._step else None

    def undo(self) -> None:
        """Puts torch's process-wide matrix precision back; the model itself was never changed."""
        torch.set_float32_matmul_precision(self._precision)


def apply(
    target: torch.nn.Module | Workload,
    recipe: Recipe | str | Path | Iterable[str],
    *,
    forward: Callable[[Any, Any], Any] = call_model,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
) -> Applied:
    """Applies a recipe (a file, a Recipe, or names of rungs) to a model, or to a Workload.

    forward, loss, optimizer: as in `rung.Workload`; with loss and optimizer, `step(batch)` runs the whole
    training step with every rung in effect. The model stays on the device on which it is.

    Raises UsageError for an unknown rung, InputError for a file that is no recipe.
    """
    if isinstance(recipe, (str, Path)):
        recipe = Recipe.read(Path(recipe))
    plan = plan_of(list(recipe.rungs if isinstance(recipe, Recipe) else recipe))
    if isinstance(target, Workload):
        workload, device = target, pick()
        model = seeded_model(workload).to(device.torch_name)
    else:
        if (loss is None) != (optimizer is None):
            raise UsageError("rung.apply needs both loss= and optimizer= for a training step, or neither.")
        model = target
        where = next((t.device for t in pytree.tree_leaves(list(model.parameters()))), torch.device("cpu"))
        device = pick("cpu" if where.type == "cpu" else str(where))
        mode: Mode = "train" if loss else "infer"
        workload = Workload("a model", lambda: model, lambda seed: None, forward, mode, loss, optimizer)
    whole = workload.mode == "train" or isinstance(target, Workload)
    applied = Applied(model, plan, device, Step(workload, model, plan, device) if whole else None)
    if not whole:
        pending = [("fused-optimizer", plan.fused_optimizer), ("capture", plan.capture and model.training)]
        applied.pending = tuple(name for name, on in pending if on)
    return applied
