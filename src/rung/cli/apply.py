"""`rung apply`: parse, call, render."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from rung.cli.common import add_command, need_torch, regular_file, target_here, target_options
from rung.errors import UsageError

EXAMPLE = """\
example, on a CPU:
  $ rung apply .rung/RUN/recipe.toml model.py:make
  --- the untouched model
  +++ rung.apply(model, .rung/RUN/recipe.toml)
  + compile  forward and loss as one compiled function, static shapes  [reassociated]
    [reassociated]: other kernels of the same precision may run, so sums may be added in
    another order
    input shapes: the first has a graph of its own; all others share one with symbolic sizes
  measured in the climb: 4.12×
  fits model.py:make: made for this model structure, mode, torch and device

more:
  rung apply recipe.toml               what the recipe changes
  rung apply recipe.toml model.py:make --batch 16

This command changes nothing. In your program, write `model = rung.apply(model, "recipe.toml")`.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "apply", help_text, EXAMPLE, run, target="target")
    parser.add_argument("recipe", nargs="?", type=regular_file, metavar="RECIPE", help="the recipe.toml of a climb")
    parser.add_argument("target", nargs="?", metavar="TARGET", help="the workload to which you want to apply it")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the best one)")


def run(parsed: argparse.Namespace) -> int:
    if not parsed.recipe:
        raise UsageError("give a recipe, as in `rung apply .rung/RUN/recipe.toml`.")
    if parsed.target and parsed.target.endswith(".toml"):
        raise UsageError(
            f"give one recipe: {parsed.recipe} and {parsed.target} are two, perhaps of a pattern such as `*`."
        )
    from rung.recipes.compatibility import changes, missing_variables, other_shapes_note, unspecified
    from rung.recipes.recipe import Recipe
    from rung.records.recipe import Applied
    from rung.records.record import plain
    from rung.report.ladder import recipe_lines
    from rung.runs import to_json

    recipe = Recipe.read(parsed.recipe)
    need_torch()
    differs, missing = _differs(parsed, recipe), unspecified(recipe.made_for)
    found = Applied(
        recipe=str(parsed.recipe),
        mode=recipe.mode,
        status=recipe.status,
        changes=changes(recipe),
        variables=missing_variables(recipe),
        original=recipe.original,
        shapes=other_shapes_note(recipe),
        measured=recipe.measured,
        differs=differs,
        untold=missing,
        fits=parsed.target if parsed.target and not missing and not differs else None,
    )
    print(to_json(plain(found)) if parsed.json else "\n".join(recipe_lines(found, shlex.quote(str(parsed.recipe)))))
    return 0


def _differs(parsed: argparse.Namespace, recipe: Any) -> list[str]:
    import torch

    from rung.hardware import pick
    from rung.recipes.compatibility import differences, unsupported_rungs
    from rung.recipes.fingerprint import describe_model

    device, model, optimizer, mode = pick(parsed.device), None, None, ""
    here = {"device": device.name, "torch": str(torch.__version__)}
    if parsed.target:
        from rung.engine.optimizer import make_optimizer
        from rung.workload import load, seeded_model

        options = recipe.options_for(parsed.target, target_options(parsed))
        with target_here(parsed.target):
            workload = load(parsed.target, options)
            model = seeded_model(workload)
            mode, optimizer = workload.mode, make_optimizer(workload, model)
        here |= {"mode": mode, "model": describe_model(model)}
    elif parsed.rest:
        raise UsageError(f"unexpected argument {parsed.rest[0]!r}; options belong to a TARGET.")
    return [
        *differences(recipe.made_for, here),
        *unsupported_rungs(recipe.rungs, device, model, optimizer, mode).values(),
    ]
