"""A recipe on a user's own model, in the user's own process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.channels_last import outputs_as_without
from rung.engine.compiled import Compiled
from rung.engine.cuda_graph import GraphedStep
from rung.engine.disturbed import elements
from rung.engine.dynamo import expect_changes
from rung.engine.optimizer import carried, made_by, remade
from rung.engine.own_dtype import OwnDtype, cast_back
from rung.engine.step import Step
from rung.errors import UsageError
from rung.hardware import pick
from rung.hardware.device import Device, autocast, matmul_precision_name
from rung.plan import Numerics, Plan
from rung.recipes import store
from rung.recipes.fit import described, differences, found_nothing, impossible, missing_variables, structure
from rung.recipes.recipe import Recipe, at_odds
from rung.rungs import chosen, plan_of
from rung.workload import Workload, call_model, seeded_model
from rung.workload.base import Mode

COMPILED_BACKWARD = "ddp-compiled-backward"  # has a whole step for its own

logger = logging.getLogger(__name__)
PASSED_ON = (
    "training", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
    "named_children", "state_dict", "load_state_dict", "zero_grad", "config", "device", "dtype",
)  # fmt: skip


Factory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class _Made:
    """The user's factory, and whatever it made that someone still holds: of these one steps, or none where a rung remakes it."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._held: list[tuple[weakref.ref[torch.optim.Optimizer], str, list[Any]]] = []

    def __call__(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        made = self._factory(parameters)
        if isinstance(made, torch.optim.Optimizer):
            self._held.append((weakref.ref(made), carried(made), _rates(made)))
        return made

    def astray(self, steps: torch.optim.Optimizer | None) -> str:
        """What was hung on another one than the one that steps, since it was made; empty where nothing was. ReduceLROnPlateau leaves no
        mark but the rate that it lowers."""
        for held, before, rates in self._held:
            made = held()
            if made is None or made is steps:
                continue
            if (now := carried(made)) != before:
                return now
            if _rates(made) != rates:
                return "another learning rate"
        return ""


def _rates(made: torch.optim.Optimizer) -> list[Any]:
    """Of an optimizer's groups; a tensor stands for itself, because one made anew has the same, and sees what is written to it."""
    rates = [group.get("lr") for group in made.param_groups]
    return [id(rate) if isinstance(rate, torch.Tensor) else rate for rate in rates]


class Applied:
    """A model under a recipe, made by `rung.apply`: call it as you call the model; `step(batch)` runs a whole training step.

    - `model` is the object that was given. Its class, state dict and hooks are untouched.
    - `pending` names the rungs that are not in effect. They need `loss` and `optimizer`; or variables that the process was not started
      with (`rung apply` prints them); or they were warned of, because the device or the model is of another kind.
    - `train`, `eval` and what else is usually read of a model go to the model.
    - Inputs of a size at which the recipe was found to lose go to the model as it is, in `step` too.
    - With `capture` or `reduce-overhead` in the recipe, the next call overwrites results: clone what you keep. With `reduce-overhead`, it
      overwrites gradients, too: step and clear them before, or sum them up elsewhere.
    - With `bf16`, bfloat16 outputs are cast back to the dtype of the model's weights. What `step` returns in training is not, as under
      torch.autocast: casting logits takes time, and few programs read them.
    - With `channels-last`, outputs are in the usual layout where the inputs are, as the untouched model gives them.
    - With `compile` or a rewrite, Dynamo's limit on compilations of one function is raised in every thread that calls it. Otherwise a
      model that is called with more than eight shapes would run uncompiled. Hooks that are registered later are run.
    """

    def __init__(
        self, model: torch.nn.Module, plan: Plan, device: Device, workload: Workload | None, dynamic: bool | None = None
    ) -> None:
        """workload: of a step that is more than a call of the model."""
        self.model = model
        made = workload.optimizer if workload else None
        self._made = made if isinstance(made, _Made) else None
        self._plan, self._device = plan, device
        self._original = plan.original or None
        self._thread = _Thread()
        # First: what it binds to the model in place is set aside after what the calls bind, in `aside`.
        self._step = Step(workload, model, plan, device, self._expect_changes, dynamic) if workload else None
        self._precision = matmul_precision_name()
        self.pending: tuple[str, ...] = ()
        self._told = not (plan.passes or plan.regions)
        self._named = "an empty recipe"
        if plan.tf32:
            torch.set_float32_matmul_precision("high")

        # What is traced reads no more of this object than it needs: Dynamo guards all that it reads, in every call.
        def forward(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        def forward_in_bf16(*args: Any, **kwargs: Any) -> Any:
            with autocast(device, torch.bfloat16):
                output = model(*args, **kwargs)
            return cast_back(output, weights.dtype)

        self._weights = weights = OwnDtype(model)
        # Shapes, modes and hooks are compiled for apart; beyond the limit, Dynamo would leave a function uncompiled.
        self._expects = plan.compiles or bool(plan.passes)
        self._limits = self._expect_changes()
        function = inner = forward_in_bf16 if plan.bf16 else forward
        if plan.channels_last:

            def function(*args: Any, **kwargs: Any) -> Any:
                return outputs_as_without(inner(*args, **kwargs), (args, kwargs))

        self._compiled = Compiled(function, model, plan, device.arch, self._expect_changes, dynamic)
        self._captured: GraphedStep | None = None
        if plan.capture:
            self._captured = self._newly_captured()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._original and self._original.takes_call(elements((args, kwargs))):
            with self.aside():
                output = self.model(*args, **kwargs)
            return outputs_as_without(output, (args, kwargs)) if self._plan.channels_last else output
        if self._plan.bf16:
            self._weights.look()
        if not self._thread.expects_changes:
            self._expect_changes()
        if self._compiled.renews and self._compiled.renewed() and self._captured:
            self._captured = self._newly_captured()
        if self._captured and not torch.is_grad_enabled():
            output = self._captured((args, kwargs))
        else:
            output = self._compiled(*args, **kwargs)
        if not self._told and self._step is None:
            self._tell(self._compiled)
        return output

    def _newly_captured(self) -> GraphedStep:
        return GraphedStep(lambda batch: self._compiled(*batch[0], **batch[1]), self._device, self.model)

    def train(self, mode: bool = True) -> Applied:
        self.model.train(mode)
        return self

    def eval(self) -> Applied:
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        if name in PASSED_ON:
            return getattr(self.model, name)
        raise AttributeError(
            f"a model under a recipe has no {name!r}; `.model` is the model itself: what is changed there holds here, too, and what is called there runs without the recipe."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses what is meant for the model, and would have no effect here."""
        if name == "model" and "model" in vars(self):
            raise AttributeError("the model under a recipe cannot be exchanged: call rung.apply on the other one.")
        if not (name.startswith("_") or name in ("model", "pending") or hasattr(type(self), name)):
            raise AttributeError(f"{name!r} of a model under a recipe cannot be set: set it on `.model`.")
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What was compiled runs this very model: a copy, or what is loaded again, would run it in the place of its own."""
        raise UsageError(
            "a model under a recipe cannot be copied or pickled: copy or save `.model`, or its state_dict(), and give that to rung.apply."
        )

    def __repr__(self) -> str:
        return f"{type(self.model).__name__} under {self._named}"

    def _tell(self, way: Compiled | Step) -> None:
        """Warns, after the first run, of rewrites that found nothing in what was captured or copy at every call, and of a model
        without repeated blocks."""
        if not self._told:
            if self._plan.regions:
                way = self._compiled  # whose blocks are bound to the model last, and run in steps, too
            self._told, seen = True, way.applied()
            if self._plan.regions and not seen["regions"]:
                warnings.warn("compile-regions found no list of equal blocks: nothing is compiled.", stacklevel=3)
            if seen["copied_joins"]:
                warnings.warn(
                    "weights that are multiplied as one are copied together at every call, as others may hold their memory: give rung.apply a model whose state dict is not kept.",
                    stacklevel=3,
                )
            for name in [name for name, count in seen["matches"].items() if not count]:
                warnings.warn(found_nothing(name, seen["skipped"]) + ".", stacklevel=3)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside of it the model is as its author wrote it: nothing that either of the two ways to run it has bound to it in place is in
        effect."""
        with self._compiled.aside(), self._step.aside() if self._step else contextlib.nullcontext():
            yield

    def step(self, batch: Any) -> Any:
        """One whole step: `(loss, output)` in training (None for an output that is not asked for), the output in inference."""
        if self._step is None:
            with torch.no_grad():
                return self(**batch) if isinstance(batch, dict) else call_model(self, batch)
        self._warn_of_another_optimizer()
        if not self._thread.expects_changes:
            self._expect_changes()
        loss, output = self._step(batch)
        self._tell(self._step)
        return output if loss is None else (loss, output)

    def _warn_of_another_optimizer(self) -> None:
        """Once, where a scheduler or a hook was given to one that never steps."""
        if self._made and (found := self._made.astray(self.optimizer)):
            self._made = None
            warnings.warn(
                f"an optimizer that optimizer= made was given {found}, but it is not the one that steps: use `.optimizer` of what rung.apply returned.",
                stacklevel=3,
            )

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer that `step` uses, and the only one. What optimizer= made may have been made anew. Schedulers
        and hooks belong to it."""
        return self._step.optimizer if self._step else None

    def undo(self) -> None:
        """Puts torch's process-wide settings back, blocks that were compiled, the model's own switches, and the layout of its weights and
        of the optimizer's states; nothing else was ever changed. Under channels-last, wrap the model in DistributedDataParallel anew afterwards:
        its buckets are for the layout that the weights had."""
        self._compiled.undo()  # first what was bound last
        if self._step:
            self._step.undo()
        if self._plan.tf32:
            torch.set_float32_matmul_precision(self._precision)
        for name, limit in self._limits.items():
            setattr(torch._dynamo.config, name, limit)
        self._expects = False

    def _expect_changes(self) -> dict[str, int]:
        """In each thread, whose settings of Dynamo are its own in newer torch, and before a new shape is compiled."""
        self._thread.expects_changes = True
        return expect_changes() if self._expects else {}


class _Thread(threading.local):
    expects_changes = False


def apply(
    target: torch.nn.Module | Workload,
    recipe: Recipe | str | Path | Iterable[str],
    *,
    forward: Callable[[Any, Any], Any] = call_model,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Factory | None = None,
    output: bool = True,
    dynamic: bool | None = None,
    numerics: Numerics | None = None,
    device: str | None = None,
) -> Applied:
    """A model under a recipe.

    With `loss` and `optimizer`, `step(batch)` of what is returned runs a whole training step with every rung in effect. The optimizer
    that steps is its `.optimizer`: `optimizer` is called more than once, and a rung may make anew what it returned. Schedulers and
    hooks belong to that one::

        trainer = rung.apply(model, "recipe.toml", loss=loss, optimizer=torch.optim.AdamW)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, T_max=1000)

        def clip(optimizer, args, kwargs):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        trainer.optimizer.register_step_pre_hook(clip)
        for batch in batches:
            loss, output = trainer.step(batch)
            scheduler.step()

    If what `optimizer` returns has a hook or a scheduler already, rungs that would lose it are left out with a warning. A hook of a
    step is Python, which no graph replays. With one, a recipe with `capture` runs its steps uncaptured.

    Args:
        target: the model, which stays on its device; or a Workload, whose model is made on `device`. A model that you
            have wrapped in DistributedDataParallel is called as it is: a rung about the exchange is in effect where you gave that its
            arguments (`Recipe.read(...).ddp`) or its hook, and else is left out with a warning that says what to give.
        recipe: a file, a `Recipe`, a rung's name, or several. "auto" takes the recipe that a climb has verified for a model of this
            structure, in this mode, on this device and with this torch.
        forward, loss, optimizer, output: as in `Workload`.
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
    if numerics is not None and not _automatic(recipe):
        raise UsageError('rung.apply takes numerics= with "auto" alone: any other recipe says what it may change.')
    if isinstance(target, Workload):
        workload, where = target, pick(device)
        model = seeded_model(workload).to(where.torch_name)
    else:
        if device is not None:
            raise UsageError("rung.apply takes device= with a Workload alone: a model stays where it is.")
        if optimizer is not None and not callable(optimizer):
            raise UsageError(
                f"rung.apply got {type(optimizer).__name__} as optimizer=: give a function that makes it, as lambda parameters: torch.optim.AdamW(parameters)."
            )
        if (loss is None) != (optimizer is None):
            raise UsageError("rung.apply needs both loss= and optimizer= for a training step, or neither.")
        if not isinstance(target, torch.nn.Module):
            raise UsageError(
                f"rung.apply got a {type(target).__name__}: give the torch.nn.Module itself, or a rung.Workload."
            )
        model, where = target, device_of(target)
        mode: Mode = "train" if loss else "infer"
        workload = Workload("a model", lambda: model, lambda seed: None, forward, mode, loss, optimizer, output=output)
    here = _facts(model, workload.mode, where)
    found, wanted = recipe_for(recipe, model, workload.mode, where, numerics)
    made = _Made(workload.optimizer) if workload.optimizer else None
    workload = replace(workload, optimizer=made)
    optimizers = [made_by(workload, model) for _ in range(2)]
    left_out = impossible(wanted.rungs, where, model, optimizers[0])
    if optimizers[0] is not None and optimizers[0] is optimizers[1]:
        left_out |= _would_leave_behind(optimizers[0], [name for name in wanted.rungs if name not in left_out])
    whole = workload.mode == "train" or isinstance(target, Workload)
    if not whole and COMPILED_BACKWARD in wanted.rungs:
        left_out[COMPILED_BACKWARD] = (
            f"{COMPILED_BACKWARD} is not in effect: it needs loss= and optimizer=. Without them leave torch._dynamo.config.optimize_ddp as it was: gradients would be exchanged one by one."
        )
    plan = replace(wanted, rungs=tuple(name for name in wanted.rungs if name not in left_out)).plan
    stepped = whole or forward is not call_model  # a step is more than a call of the model then
    applied = Applied(model, plan, where, workload if stepped else None, dynamic)
    if not whole:  # a model alone may be called in either mode
        here["mode"] = ""
    for text in [*differences(wanted.made_for, here), *left_out.values()]:
        warnings.warn(text, stacklevel=2)
    applied.pending = tuple(left_out)
    applied._named = " + ".join(name for name in wanted.rungs if name not in left_out) or applied._named
    if found:
        applied._named += f" ({wanted.status}, {found})"
    if not whole:
        pending = [("fused-optimizer", plan.fused_optimizer), ("capture", plan.capture and model.training)]
        applied.pending += tuple(name for name, on in pending if on)
    unset = missing_variables(wanted)
    for name in wanted.rungs:
        if lacking := [f"{variable}={unset[variable]}" for variable, _ in plan_of([name]).env if variable in unset]:
            applied.pending += (name,)
            warnings.warn(f"{name} is not in effect: start the process with {' '.join(lacking)}.", stacklevel=2)
    return applied


def _would_leave_behind(optimizer: torch.optim.Optimizer, names: Iterable[str]) -> dict[str, str]:
    """By name, a sentence for each rung that would step with another than one that was there before: whoever holds that one would save
    its state, which stays empty, and set its rates."""
    plans = {name: plan_of([name]) for name in names}
    return {
        name: f"{name} is not in effect: optimizer= gives one that was there before, and an optimizer made anew would step in its place; make it inside of the function."
        for name, plan in plans.items()
        if remade(optimizer, fused=plan.fused_optimizer, capturable=plan.capture) is not optimizer
    }


def device_of(model: torch.nn.Module) -> Device:
    """The device on which a model's parameters are."""
    where = next((t.device for t in pytree.tree_leaves(list(model.parameters()))), torch.device("cpu"))
    return pick("cpu" if where.type == "cpu" else str(where))


def recipe_for(
    recipe: Recipe | str | Path | Iterable[str],
    model: torch.nn.Module,
    mode: Mode,
    device: Device,
    numerics: Numerics | None = None,
) -> tuple[Path | None, Recipe]:
    """The recipe that is meant for a model in a mode, and its file where "auto" found one in the store."""
    if not _automatic(recipe):
        return None, _recipe(recipe)
    found, wanted = store.find(structure(model), _facts(model, mode, device), numerics)
    logger.info("%s: %s, %s", found, wanted.status, " + ".join(wanted.rungs))
    return found, wanted


def _automatic(recipe: Recipe | str | Path | Iterable[str]) -> bool:
    return recipe == "auto" and not Path("auto").is_file()


def _facts(model: torch.nn.Module, mode: Mode, device: Device) -> dict[str, str]:
    """What a recipe is asked about: was it made for this?"""
    there_is = torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = torch.distributed.get_world_size() if there_is else 1
    return {
        "mode": mode,
        "device": device.name,
        "torch": str(torch.__version__),
        "model": described(model),
        "ranks": str(ranks),
    }


def _recipe(recipe: Recipe | str | Path | Iterable[str]) -> Recipe:
    """The recipe that is meant, by whatever names it; a file goes before a rung of the same name."""
    if isinstance(recipe, Path) or (isinstance(recipe, str) and _is_path(recipe)):
        return Recipe.read(Path(recipe))
    if isinstance(recipe, Recipe):
        return _sound(recipe)
    if isinstance(recipe, str):
        recipe = [recipe]
    names = list(recipe) if isinstance(recipe, Iterable) and not isinstance(recipe, (bytes, bytearray)) else [recipe]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"rung.apply takes a recipe's file, a Recipe, or names of rungs; got {recipe!r:.60}.")
    return _sound(Recipe(tuple(names)))


def _is_path(text: str) -> bool:
    """Whether a text names a file, and no rung."""
    return text.endswith(".toml") or "/" in text or os.sep in text or Path(text).is_file()


def _sound(recipe: Recipe) -> Recipe:
    """The recipe, with today's names. Raises UsageError where its rungs cannot be meant, as reading its file would."""
    rungs = tuple(rung.name for rung in chosen(recipe.rungs))
    if wrong := at_odds(rungs, recipe.numerics):
        raise UsageError(f"the recipe {wrong}.")
    return replace(recipe, rungs=rungs)
