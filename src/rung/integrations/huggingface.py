"""Callbacks for the `Trainer` of Hugging Face transformers, and for trainers that are derived from it.

Trainer(model, args, ..., callbacks=[RecipeCallback("recipe.toml"), ProfileCallback(10, 12)])
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from rung.errors import UsageError
from rung.integrations.in_place import Loop, TrainsInPlace
from rung.integrations.profiled import RecordsSteps
from rung.recipes.recipe import Recipe
from rung.watching.sampler import EVERY, WatchedTraining

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise UsageError("these callbacks are for Hugging Face's Trainer: `pip install transformers accelerate`.") from None

__all__ = ["ProfileCallback", "RecipeCallback", "WatchCallback"]


class RecipeCallback(TrainerCallback):
    """Trains the Trainer's model under a recipe; evaluation, and what is saved, are the model's own.

    The recipe is in effect from the start of `train()` to its end, in calls of the model that train. The Trainer goes on to clip
    gradients, step, accumulate, save and resume, so `capture` and `fused-optimizer` are its business and left out. `left_out` has every
    rung that is not in effect, with the reason; each is warned of.

    Args:
        recipe: as `rung.apply` takes it: a file, "auto", a `Recipe`, a rung's name, or several.
        dynamic: as `rung.apply` takes it.

    Raises:
        UsageError: when training starts with DeepSpeed, FSDP, DataParallel or torch_compile=True, or with fp16=True and a recipe in
            bfloat16.
    """

    def __init__(self, recipe: Recipe | str | Path | Iterable[str], *, dynamic: bool | None = None) -> None:
        self._recipe, self._dynamic = recipe, dynamic
        self._trains: TrainsInPlace | None = None
        self.left_out: dict[str, str] = {}

    @property
    def applied(self) -> Any:
        """What `rung.apply` returned; None before a training."""
        return self._trains.applied if self._trains else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains:  # of a training that was broken off
            self._trains.undo()
        _refuse(args)
        loop = Loop(
            name="the Trainer",
            optimizers=[kwargs["optimizer"]],
            accumulates=args.gradient_accumulation_steps > 1,
            float16=args.fp16,
            fused='optim="adamw_torch_fused" in TrainingArguments gives fused steps',
        )
        self._trains = TrainsInPlace(kwargs["model"], self._recipe, loop, self._dynamic)
        self.left_out = self._trains.left_out
        if state.is_world_process_zero:
            self._trains.announce()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains:
            self._trains.after_a_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trains:
            self._trains.undo()


class ProfileCallback(RecordsSteps, TrainerCallback):
    """Records the optimizer steps `first` to `last` of a `train()`, counted from 1 where it starts or is resumed, and analyzes them.

    `folder` then has trace.json.gz, analysis.txt and analysis.html. A failure is warned of, and the training goes on.

    Args:
        first, last: the steps to record.
        out: a new folder; by default one below `.rung/profiles`.
        ranks: which processes record.
        options: what else torch.profiler records (`rung.profilers.torch_profiler.Options`).
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.before(torch.device(args.device), args.process_index, args.world_size)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.after()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.close()


class WatchCallback(TrainerCallback):
    """Has `rung watch` see each `train()` while it runs, as `rung.watch` does for a loop of your own. A failure is warned of, and the
    training goes on.

    Under DDP, each rank's own pace and the exposed exchange of gradients are known. With FSDP, DeepSpeed and DataParallel they are not.

    Args:
        folder, every: as of `rung.watch`.
    """

    def __init__(self, *, folder: str | Path | None = None, every: float = EVERY) -> None:
        self._watched = WatchedTraining(folder, every)

    @property
    def folder(self) -> Path | None:
        """Where the ranks write; None before a training."""
        return self._watched.folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The model that is told is not the one that DDP wraps, but has its parameters.
        averaged = args.world_size > 1 and args.n_gpu <= 1 and not _sharded_by(args)
        self._watched.begin(kwargs["model"], averaged, args.ddp_broadcast_buffers is not False)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watched.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watched.close()


def _refuse(args: Any) -> None:
    """Raises UsageError for what a recipe cannot be applied beside."""
    if name := _sharded_by(args):
        raise UsageError(
            f"RecipeCallback does not work with {name}, which shards the model's weights: train with DDP (torchrun), or leave RecipeCallback out."
        )
    if args.n_gpu > 1:
        raise UsageError(
            f"the Trainer would copy the model to {args.n_gpu} GPUs at every step (DataParallel), and the copies would run without the recipe: start it with torchrun, or show it one GPU (CUDA_VISIBLE_DEVICES=0)."
        )
    if args.torch_compile:
        raise UsageError("TrainingArguments has torch_compile=True, but a recipe compiles the model itself: leave one of the two out.")  # fmt: skip


def _sharded_by(args: Any) -> str | None:
    """What takes the model's weights apart, if anything does."""
    sharded = {"DeepSpeed": ("deepspeed", "ACCELERATE_USE_DEEPSPEED"), "FSDP": ("fsdp", "ACCELERATE_USE_FSDP")}
    for name, (option, variable) in sharded.items():
        launched = (
            os.environ.get(variable, "").lower() == "true"
        )  # by `accelerate launch`, of which the arguments say nothing
        if getattr(args, option, None) or launched:
            return name
    return None
