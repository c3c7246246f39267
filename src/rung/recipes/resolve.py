"""Which recipe is meant for a model: that of a file, of rungs by their names, or the one that a climb has verified for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from rung.errors import UsageError
from rung.hardware import pick
from rung.hardware.device import Device
from rung.plan import Numerics
from rung.recipes import store
from rung.recipes.fingerprint import describe_model, structure_hash
from rung.recipes.recipe import Recipe, contradiction
from rung.rungs import rungs_named
from rung.workload.base import Mode

logger = logging.getLogger(__name__)


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
    if not is_auto(recipe):
        return None, _recipe(recipe)
    file, stored = store.find(structure_hash(model), current_setup(model, mode, device), numerics)
    logger.info("%s: %s, %s", file, stored.status, " + ".join(stored.rungs))
    return file, stored


def is_auto(recipe: Recipe | str | Path | Iterable[str]) -> bool:
    """Whether the recipe that a climb has verified is meant, and no file of that name."""
    return recipe == "auto" and not Path("auto").is_file()


def current_setup(model: torch.nn.Module, mode: Mode, device: Device) -> dict[str, str]:
    """What a recipe has to be made for to fit here: mode, device, torch, the model in words, and the number of ranks."""
    in_job = torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = torch.distributed.get_world_size() if in_job else 1
    return {
        "mode": mode,
        "device": device.name,
        "torch": str(torch.__version__),
        "model": describe_model(model),
        "ranks": str(ranks),
    }


def _recipe(recipe: Recipe | str | Path | Iterable[str]) -> Recipe:
    """The recipe that is meant, by whatever names it; a file goes before a rung of the same name."""
    if isinstance(recipe, Path) or (isinstance(recipe, str) and _is_path(recipe)):
        return Recipe.read(Path(recipe))
    if isinstance(recipe, Recipe):
        return _checked(recipe)
    if isinstance(recipe, str):
        recipe = [recipe]
    names = list(recipe) if isinstance(recipe, Iterable) and not isinstance(recipe, (bytes, bytearray)) else [recipe]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"rung.apply takes a recipe's file, a Recipe, or names of rungs; got {recipe!r:.60}.")
    return _checked(Recipe(tuple(names)))


def _is_path(text: str) -> bool:
    """Whether a text names a file, and no rung."""
    return text.endswith(".toml") or "/" in text or os.sep in text or Path(text).is_file()


def _checked(recipe: Recipe) -> Recipe:
    """The recipe, with today's names. Raises UsageError where its rungs cannot be meant, as reading its file would."""
    rungs = tuple(rung.name for rung in rungs_named(recipe.rungs))
    if wrong := contradiction(rungs, recipe.numerics):
        raise UsageError(f"the recipe {wrong}.")
    return replace(recipe, rungs=rungs)
