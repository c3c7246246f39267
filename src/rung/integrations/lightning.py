"""Callbacks for Lightning's `Trainer`, of the package `lightning` or `pytorch_lightning`.

Trainer(callbacks=[RecipeCallback("recipe.toml"), ProfileCallback(10, 12)])
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from rung.errors import UsageError
from rung.integrations.in_place import Loop, TrainsInPlace
from rung.integrations.profiled import RecordsSteps
from rung.recipes.recipe import Recipe
from rung.watching.pace import data_parallel
from rung.watching.sampler import EVERY, WatchedTraining

__all__ = ["ProfileCallback", "RecipeCallback", "WatchCallback"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


def _callback_class() -> Any:
    """Of the package that the program has imported, else of the first that is installed."""
    there = [name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0])]
    if not there:
        raise UsageError("these callbacks are for Lightning's Trainer: `pip install lightning`.")
    name = next((name for name in there if name in sys.modules), there[0])
    return importlib.import_module(name).Callback


_Callback: Any = _callback_class()


class RecipeCallback(_Callback):
    """Trains a module of a LightningModule under a recipe; validation, and what is saved, are the model's own.

    The recipe is in effect from the start of the training to its end, in calls of the module that train. Lightning goes on to clip
    gradients, step, accumulate, save and resume, so `capture` and `fused-optimizer` are its business and left out. `left_out` has every
    rung that is not in effect, with the reason; each is warned of.

    Args:
        recipe: as `rung.apply` takes it: a file, "auto", a `Recipe`, a rung's name, or several.
        module: the name of what was climbed in the LightningModule, as "model"; "" is its own forward. Left out, it is the only child
            with parameters, else the module's own forward.
        dynamic: as `rung.apply` takes it.

    Raises:
        UsageError: when training starts with another strategy than a single device or DDP, or with precision="16-mixed" and a recipe in
            bfloat16.
    """

    def __init__(
        self,
        recipe: Recipe | str | Path | Iterable[str],
        module: str | None = None,
        *,
        dynamic: bool | None = None,
    ) -> None:
        self._recipe, self._name, self._dynamic = recipe, module, dynamic
        self._trains: TrainsInPlace | None = None
        self.left_out: dict[str, str] = {}

    @property
    def applied(self) -> Any:
        """What `rung.apply` returned; None before a training."""
        return self._trains.applied if self._trains else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._trains:  # of a training that was broken off
            self._trains.undo()
        model = _climbed(pl_module, self._name)
        _refuse(trainer, model is pl_module)
        loop = Loop(
            name="Lightning",
            optimizers=trainer.optimizers,
            accumulates=_accumulates(trainer) or not pl_module.automatic_optimization,
            float16=str(trainer.precision).startswith("16"),
            fused="make it with fused=True in configure_optimizers",
        )
        self._trains = TrainsInPlace(model, self._recipe, loop, self._dynamic)
        self.left_out = self._trains.left_out
        if trainer.is_global_zero:
            self._trains.announce()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if self._trains:
            self._trains.after_a_step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._trains:
            self._trains.undo()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)


class ProfileCallback(RecordsSteps, _Callback):
    """Records the training batches `first` to `last` of a `fit()`, counted from 1 where it starts or is resumed, and analyzes them.

    `folder` then has trace.json.gz, analysis.txt and analysis.html. A failure is warned of, and the training goes on.

    Args:
        first, last: the steps to record.
        out: a new folder; by default one below `.rung/profiles`.
        ranks: which processes record.
        options: what else torch.profiler records (`rung.profilers.torch_profiler.Options`).
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self._steps.before(trainer.strategy.root_device, trainer.global_rank, trainer.world_size)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self._steps.after()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._steps.close()


class WatchCallback(_Callback):
    """Has `rung watch` see each `fit()` while it runs, as `rung.watch` does for a loop of your own. A failure is warned of, and the training
    goes on. A step is a batch.

    Under DDP, each rank's own pace and the exposed exchange of gradients are known. With other strategies of several ranks they are not.

    Args:
        folder, every: as of `rung.watch`.
    """

    def __init__(self, *, folder: str | Path | None = None, every: float = EVERY) -> None:
        self._watched = WatchedTraining(folder, every)

    @property
    def folder(self) -> Path | None:
        """Where the ranks write; None before a training."""
        return self._watched.folder

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        ddp = data_parallel(trainer.strategy.model)
        self._watched.begin(pl_module, ddp is not None, ddp is not None and ddp.broadcast_buffers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self._watched.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._watched.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._watched.close()


def _climbed(pl_module: torch.nn.Module, name: str | None) -> torch.nn.Module:
    """The module that runs under the recipe."""
    trained = [key for key, child in pl_module.named_children() if next(child.parameters(), None) is not None]
    if name is None:
        alone = len(trained) == 1 and not any(True for _ in pl_module.parameters(recurse=False))
        name = trained[0] if alone else ""
    try:
        return pl_module.get_submodule(name)
    except AttributeError:
        raise UsageError(
            f"{type(pl_module).__name__} has no module {name!r}: name one of its modules in RecipeCallback(recipe, module=...), such as {', '.join(map(repr, trained)) or repr('')}."
        ) from None


def _accumulates(trainer: Any) -> bool:
    schedules = (getattr(callback, "going_to_accumulate_grad_batches", None) for callback in trainer.callbacks)
    return trainer.accumulate_grad_batches > 1 or any(going() for going in schedules if going)


def _refuse(trainer: Any, whole: bool) -> None:
    """Raises UsageError for what a recipe cannot be applied beside."""
    strategy = type(trainer.strategy).__name__
    if strategy not in STRATEGIES:
        raise UsageError(
            f"RecipeCallback does not work with {strategy}: train on a single device or with DDP, or leave RecipeCallback out."
        )
    if whole and strategy == "DDPStrategy":
        raise UsageError(
            "with DDP, Lightning calls the LightningModule for the whole training_step: put its layers into one module, and name that module in RecipeCallback(recipe, module=...)."
        )
