"""Does a recipe fit what it is applied to? What it was made for, beside what is here. No torch is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.ladder.recipe import Recipe
from rung.ladder.rungs import BY_NAME, plan_of

if TYPE_CHECKING:
    import torch

WHY = {
    "device": "which rungs pay depends on the chip",
    "torch": "what its compiler does by itself changes between versions",
    "model": "its rungs were verified on another model",
}


def described(model: torch.nn.Module) -> str:
    """A model in words, equal for equal architectures: its class, parameters and tensors."""
    sizes = [p.numel() for p in model.parameters()]
    return f"{type(model).__name__} with {sum(sizes)} parameters in {len(sizes)} tensors"


def differences(recipe: Recipe, here: Mapping[str, str]) -> list[str]:
    """A sentence for each of device, torch and model that is another one than the recipe was made for."""
    return [
        f"the recipe was made on {key} {recipe.made_on[key]!r}, and this is {here[key]!r}: {why}; climb again to be sure."
        for key, why in WHY.items()
        if recipe.made_on.get(key) and here.get(key) and recipe.made_on[key] != here[key]
    ]


def missing_variables(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the process would have had to be started with."""
    wanted = recipe.variables or dict(plan_of(recipe.rungs).env)
    return {name: value for name, value in wanted.items() if environ.get(name) != value}


def changes(recipe: Recipe) -> list[dict[str, Any]]:
    """What the recipe changes, rung by rung: `rung`, `level`, `contract` and `changes` in words."""
    return [
        {"rung": r.name, "level": r.level, "contract": r.contract, "changes": r.changes}
        for r in (BY_NAME[name] for name in recipe.rungs)
    ]
