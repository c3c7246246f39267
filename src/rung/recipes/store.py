"""Recipes that climbs have found, by what they were made for: `rung.apply(model, "auto")` looks for one here.

A recipe fits where the model's structure, the mode, the device, torch and the number of ranks are the same. One that is only provisional is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from rung.errors import InputError, UsageError
from rung.plan import CONTRACTS, Numerics
from rung.recipes.recipe import STATUSES, Recipe
from rung.runs import data_directory, write_whole

KEPT = ("verified", "confirmed")
ONE = "1"  # rank: of a recipe that tells of none
SAME = ("mode", "device", "torch")  # beside the structure of the model, by which the files are named


def directory() -> Path:
    """`recipes` in Rung's data directory."""
    return data_directory() / "recipes"


def keep(recipe: Recipe) -> None:
    """Keeps a verified recipe, in the place of one that was made for the same, unless that was checked further. Raises InputError where
    it cannot be written."""
    place = _place(recipe)
    if place is None or recipe.status not in KEPT:
        return
    with contextlib.suppress(InputError):  # there is none yet, or a damaged one
        if STATUSES.index(Recipe.read(place).status or STATUSES[0]) > STATUSES.index(recipe.status):
            return
    write_whole(place, recipe.text(), "set RUNG_DATA to another folder")


def forget(recipe: Recipe) -> None:
    """Drops a recipe that a later check has refuted."""
    place = _place(recipe)
    with contextlib.suppress(InputError, OSError):
        if place and Recipe.read(place).rungs == recipe.rungs:
            place.unlink()


def find(structure: str, here: Mapping[str, str], numerics: Numerics | None = None) -> tuple[Path, Recipe]:
    """The recipe that was made for this: its file and itself. here: mode, device and torch, and the model in words. numerics: what may
    change at most, of which the fastest is taken; None: the one that changes the least. Raises UsageError where there is none."""
    known = list(_recipes(structure))
    most = CONTRACTS.index(numerics) if numerics else len(CONTRACTS)
    fitting = [
        (path, recipe)
        for path, recipe in known
        if all(recipe.made_for.get(key) == here[key] for key in SAME)
        and recipe.made_for.get("ranks", ONE) == here.get("ranks", ONE)
        and _change(recipe) <= most
    ]
    if not fitting:
        wanted = f"{here['model']} in mode {here['mode']!r} on {here['device']} with torch {here['torch']}"
        others = [
            ", ".join(f"{key} {recipe.made_for.get(key)}" for key in SAME) + f", numerics {recipe.numerics}"
            for _, recipe in known
        ]
        there = f" For {'; '.join(others)} there is one." if others else ""
        raise UsageError(
            f"no verified recipe in {directory()} was made for {wanted}{f', numerics {numerics}' if numerics else ''}: climb it first, or give a recipe's file.{there}"
        )
    if numerics is None:
        least = min(_change(recipe) for _, recipe in fitting)
        fitting = [(path, recipe) for path, recipe in fitting if _change(recipe) == least]
    return max(fitting, key=lambda one: one[1].measured.get("speedup", 0.0))


def _place(recipe: Recipe) -> Path | None:
    """Where it is kept; None where it does not tell what it was made for."""
    made_for = recipe.made_for
    structure = made_for.get("structure", "")
    if not structure or not all(made_for.get(key) for key in SAME):
        return None
    ranks = [made_for["ranks"]] if "ranks" in made_for else []
    key = "\n".join([recipe.numerics, *(made_for[name] for name in SAME), *ranks])
    return directory() / f"{structure}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.toml"


def _recipes(structure: str) -> Iterator[tuple[Path, Recipe]]:
    """Of models of this structure; what is damaged is passed over."""
    for path in sorted(directory().glob(f"{structure}-*.toml")):
        with contextlib.suppress(InputError):
            recipe = Recipe.read(path)
            if recipe.status in KEPT and recipe.made_for.get("structure") == structure:
                yield path, recipe


def _change(recipe: Recipe) -> int:
    return CONTRACTS.index(recipe.numerics) if recipe.numerics in CONTRACTS else len(CONTRACTS)
