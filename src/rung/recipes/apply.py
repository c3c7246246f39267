"""A recipe on a user's own model, in the user's own process: `rung.apply`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rung.engine.optimizer import make_optimizer, rebuild
from rung.errors import UsageError
from rung.hardware import pick
from rung.hardware.device import Device
from rung.plan import Numerics
from rung.recipes.applied import Applied, Factory, OptimizerFactory
from rung.recipes.compatibility import differences, missing_variables, unsupported_rungs
from rung.recipes.recipe import Recipe
from rung.recipes.resolve import current_setup, device_of, is_auto, recipe_for
from rung.rungs import plan_of
from rung.workload import Workload, call_model, seeded_model

COMPILED_BACKWARD = "ddp-compiled-backward"  # has a whole step for its own


def apply(
    target: torch.nn.Module | Workload,
    recipe: Recipe | str | Path | Iterable[str],
    *,
    forward: Callable[[Any, Any], Any] = call_model,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Factory | None = None,
    max_grad_norm: float | None = None,
    output: bool = True,
    dynamic: bool | None = None,
    numerics: Numerics | None = None,
    device: str | None = None,
) -> Applied:
    """A model under a recipe.

    With `loss` and `optimizer`, `step(batch)` of what is returned runs a whole training step with every rung in effect. The optimizer
    that steps is its `.optimizer`: `optimizer` is called more than once, and a rung may make anew what it returned. Schedulers and
    hooks belong to that one::

        trainer = rung.apply(model, "recipe.toml", loss=loss, optimizer=torch.optim.AdamW, max_grad_norm=1.0)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, T_max=1000)
        for batch in batches:
            loss, output = trainer.step(batch)
            scheduler.step()

    If what `optimizer` returns has a hook or a scheduler already, rungs that would lose it are left out with a warning. A hook of a
    step is Python, which no graph replays. With one, a recipe with `capture` runs its steps uncaptured. `max_grad_norm` clips gradients
    in the graph as well.

    Args:
        target: the model, which stays on its device; or a Workload, whose model is made on `device`. A model that you
            have wrapped in DistributedDataParallel is called as it is: a rung about the exchange is in effect where you gave that its
            arguments (`Recipe.read(...).ddp`) or its hook, and else is left out with a warning that says what to give.
        recipe: a file, a `Recipe`, a rung's name, or several. "auto" takes the recipe that a climb has verified for a model of this
            structure, in this mode, on this device and with this torch.
        forward, loss, optimizer, max_grad_norm, output: as in `Workload`.
        dynamic: None: the first input shape has a graph of its own, and all others share one with symbolic sizes. That one is compiled
            without the recipe's rewrites, which need to know the sizes. False: each shape has a graph of its own, with the whole
            recipe. The rung dynamic-shapes makes one graph for all shapes, the first among them.
        numerics: of "auto": exact, tf32, bf16 or fp8, what may change at most; the fastest such recipe is taken. Left out, the one
            that changes the least.
        device: of a Workload, where its model is made; left out, the best device there is.

    Returns:
        What to call in the place of the model. The model itself stays as it was. Save and load that one.

    Raises:
        UsageError: for an unknown rung, or what is no model.
        InputError: for a file that is no recipe.
    """
    if dynamic:
        raise UsageError("rung.apply takes dynamic=None or dynamic=False; for True, add the rung dynamic-shapes.")
    if numerics is not None and not is_auto(recipe):
        raise UsageError('rung.apply takes numerics= with "auto" alone: any other recipe says what it may change.')
    model, workload, where = _model_and_workload(target, forward, loss, optimizer, max_grad_norm, output, device)
    here = current_setup(model, workload.mode, where)
    file, wanted = recipe_for(recipe, model, workload.mode, where, numerics)
    workload = replace(workload, optimizer=OptimizerFactory(workload.optimizer) if workload.optimizer else None)
    has_steps = workload.mode == "train" or isinstance(target, Workload)
    left_out = _left_out(wanted, model, workload, where, has_steps)
    rungs = tuple(name for name in wanted.rungs if name not in left_out)
    plan = replace(wanted, rungs=rungs).plan
    pending, messages = list(left_out), list(left_out.values())
    if not has_steps:
        here["mode"] = ""  # a model alone may be called in either mode
        of_steps = [("fused-optimizer", plan.fused_optimizer), ("capture", plan.capture and model.training)]
        pending += [name for name, on in of_steps if on]
    for name, message in _without_variables(wanted):
        pending.append(name)
        messages.append(message)
    in_words = (" + ".join(rungs) or "an empty recipe") + (f" ({wanted.status}, {file})" if file else "")
    stepped = has_steps or forward is not call_model  # a step is more than a call of the model then
    applied = Applied(
        model, plan, where, workload if stepped else None, dynamic, wanted.rungs, in_words, tuple(pending)
    )
    for text in [*differences(wanted.made_for, here), *messages]:
        warnings.warn(text, stacklevel=2)
    return applied


def _model_and_workload(
    target: torch.nn.Module | Workload,
    forward: Callable[[Any, Any], Any],
    loss: Callable[[Any, Any], torch.Tensor] | None,
    optimizer: Factory | None,
    max_grad_norm: float | None,
    output: bool,
    device: str | None,
) -> tuple[torch.nn.Module, Workload, Device]:
    """The model that is meant, the workload that runs it, and the device that it is on. Raises UsageError for arguments that do not go
    together."""
    if isinstance(target, Workload):
        where = pick(device)
        return seeded_model(target).to(where.torch_name), target, where
    if device is not None:
        raise UsageError("rung.apply takes device= with a Workload alone: a model stays where it is.")
    if optimizer is not None and not callable(optimizer):
        raise UsageError(
            f"rung.apply got {type(optimizer).__name__} as optimizer=: give a function that makes it, as lambda parameters: torch.optim.AdamW(parameters)."
        )
    if (loss is None) != (optimizer is None):
        raise UsageError("rung.apply needs both loss= and optimizer= for a training step, or neither.")
    if max_grad_norm is not None and optimizer is None:
        raise UsageError(
            "rung.apply takes max_grad_norm= with loss= and optimizer= alone: without them your own loop clips gradients."
        )
    if not isinstance(target, torch.nn.Module):
        raise UsageError(
            f"rung.apply got a {type(target).__name__}: give the torch.nn.Module itself, or a rung.Workload."
        )
    model = target
    workload = Workload(
        "a model",
        lambda: model,
        lambda seed: None,
        forward,
        "train" if loss else "infer",
        loss,
        optimizer,
        output=output,
        max_grad_norm=max_grad_norm,
    )
    return model, workload, device_of(model)


def _left_out(
    recipe: Recipe, model: torch.nn.Module, workload: Workload, device: Device, has_steps: bool
) -> dict[str, str]:
    """By name, a sentence for each rung of a recipe that cannot be in effect here. has_steps: whole steps are run, and not calls alone."""
    optimizers = [make_optimizer(workload, model) for _ in range(2)]
    left_out = unsupported_rungs(recipe.rungs, device, model, optimizers[0])
    if optimizers[0] is not None and optimizers[0] is optimizers[1]:
        left_out |= _would_leave_behind(optimizers[0], [name for name in recipe.rungs if name not in left_out])
    if not has_steps and COMPILED_BACKWARD in recipe.rungs:
        left_out[COMPILED_BACKWARD] = (
            f"{COMPILED_BACKWARD} is not in effect: it needs loss= and optimizer=. Without them leave torch._dynamo.config.optimize_ddp as it was: gradients would be exchanged one by one."
        )
    return left_out


def _without_variables(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Rungs whose variables the process was not started with, each with a sentence that says how to start it."""
    unset = missing_variables(recipe)
    for name in recipe.rungs:
        if lacking := [f"{variable}={unset[variable]}" for variable, _ in plan_of([name]).env if variable in unset]:
            yield name, f"{name} is not in effect: start the process with {' '.join(lacking)}."


def _would_leave_behind(optimizer: torch.optim.Optimizer, names: Iterable[str]) -> dict[str, str]:
    """By name, a sentence for each rung that would step with another than one that was there before: whoever holds that one would save
    its state, which stays empty, and set its rates."""
    plans = {name: plan_of([name]) for name in names}
    return {
        name: f"{name} is not in effect: optimizer= gives one that was there before, and an optimizer made anew would step in its place; make it inside of the function."
        for name, plan in plans.items()
        if rebuild(optimizer, fused=plan.fused_optimizer, capturable=plan.capture) is not optimizer
    }
