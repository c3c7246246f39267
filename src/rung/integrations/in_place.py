"""A model that trains under a recipe inside of a training loop that somebody else wrote."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rung.engine.optimizer import is_fused
from rung.errors import UsageError
from rung.integrations.only_warns import only_warns
from rung.recipes.apply import apply
from rung.recipes.compatibility import differences, missing_variables
from rung.recipes.recipe import Recipe
from rung.recipes.resolve import device_of, recipe_for
from rung.rungs import plan_of

CALL = "_compiled_call_impl"  # what torch calls in the place of a module's own call, as Module.compile sets it


@dataclass(frozen=True)
class Loop:
    """What a training loop does around the model.

    name: as sentences call it. optimizers: those that step. accumulates: the gradients of several calls are summed up, or one step has
    several calls. float16: it runs the model in float16, with a scaled loss. fused: how its user gets fused optimizer steps.
    """

    name: str
    optimizers: Sequence[Any]
    accumulates: bool
    float16: bool
    fused: str


class TrainsInPlace:
    """Calls of `model` that train run under a recipe, until `undo`; all other calls, as in evaluation, run the model as it is.

    The object stays the loop's own: its class, state dict, hooks and `forward` are not touched, and a copy or a pickle of it knows nothing
    of the recipe. `left_out`: by name of a rung that is not in effect, why. `calls`: how many ran under the recipe.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        recipe: Recipe | str | Path | Iterable[str],
        loop: Loop,
        dynamic: bool | None = None,
    ) -> None:
        """dynamic: as of `rung.apply`. Raises UsageError for a model or a loop that no recipe can be applied in, InputError for a file that is no recipe."""
        if getattr(model, CALL, None) is not None or hasattr(model, "_orig_mod"):
            raise UsageError(f"{type(model).__name__} is already compiled, but a recipe compiles the model itself: leave torch.compile out.")  # fmt: skip
        self._model, self.calls, self._stepped = model, 0, False
        _, wanted = recipe_for(recipe, model, "train", device_of(model))
        if loop.float16 and (in_bf16 := [name for name in wanted.rungs if plan_of([name]).bf16]):
            raise UsageError(
                f"{loop.name} runs the model in float16, but the recipe's {in_bf16[0]} runs it in bfloat16: choose bfloat16 there, or a recipe without {in_bf16[0]}."
            )
        self.left_out = _left_out(wanted, loop)
        rungs = tuple(
            name for name in wanted.rungs if name not in self.left_out and not plan_of([name]).fused_optimizer
        )
        with only_warns():
            for text in [*differences(wanted.made_for, {"mode": "train"}), *self.left_out.values()]:
                warnings.warn(text, stacklevel=3)
            # This warns of what the device or the model cannot have.
            self.applied = apply(model, replace(wanted, rungs=rungs), dynamic=dynamic)
        self.left_out |= {
            name: f"{name} is not in effect." for name in self.applied.pending if name not in self.left_out
        }
        model._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of `model(...)`. What runs inside finds the model as it was, so that it can call it."""
        model: Any = self._model
        model._compiled_call_impl = None
        try:
            if model.training and torch.is_grad_enabled():
                self.calls += 1
                with only_warns():  # of what was not found, of other shapes; torch warns, too, while it compiles
                    return self.applied(*args, **kwargs)
            with self.applied.aside():
                return model(*args, **kwargs)
        finally:
            model._compiled_call_impl = self

    def after_a_step(self) -> None:
        """Warns once where the first step called a part of the model, and never the model."""
        if not self.calls and not self._stepped:
            with only_warns():
                warnings.warn(
                    f"the recipe is not in effect: the first training step did not call {type(self._model).__name__} itself (perhaps it called a submodule or a method); call the model.",
                    stacklevel=3,
                )
        self._stepped = True

    def undo(self) -> None:
        """The model's calls are its own again, and so are torch's settings."""
        if vars(self._model).pop(CALL, None) is not None:
            self.applied.undo()

    def announce(self) -> None:
        """One line on stderr: what the model trains under."""
        print(f"rung: {self.applied!r} in training; evaluation runs the model as it is.", file=sys.stderr)


def _left_out(recipe: Recipe, loop: Loop) -> dict[str, str]:
    """By name, a sentence for each rung that cannot be in effect in a loop."""
    unset = missing_variables(recipe)
    found = {}
    for name in recipe.rungs:
        plan, why = plan_of([name]), ""
        if plan.capture:
            why = (
                f"{loop.name} clips gradients and steps the optimizer outside of the model's call, but a captured step must contain both; "
                "in a loop of your own, rung.apply(model, recipe, loss=..., optimizer=...) captures them"
            )
        elif plan.fused_optimizer and not (loop.optimizers and all(map(is_fused, loop.optimizers))):
            why = f"{loop.name} makes the optimizer; {loop.fused}"
        elif plan.replays and loop.accumulates:
            why = "each replay overwrites the gradients of the call before, but this loop sums the gradients of several calls"
        elif plan.channels_last:
            why = f"{loop.name} may have wrapped the model in DistributedDataParallel, whose buckets misread gradients in another layout than the weights had then"
        elif variables := [f"{key}={unset[key]}" for key, _ in plan.env if key in unset]:
            why = f"start the process with {' '.join(variables)}"
        if why:
            found[name] = f"{name} is not in effect: {why}."
    return found
