"""Level 1: variables that a worker is started with; the facts are in environment.toml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from typing import Any

from rung.ladder.plan import Plan
from rung.ladder.rungs.proofs import both, counted, told
from rung.ladder.rungs.rung import Context, Inapplicable, Rung, already

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEAST_SHARE = 0.02  # of the step: with less of what a setting works on, there is nothing to gain
FILES = "{files}"


@lru_cache(maxsize=1)
def settings() -> tuple[Mapping[str, Any], ...]:
    """The rows of environment.toml."""
    text = resources.files("rung.ladder.rungs").joinpath("environment.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["setting"])


def _applies(row: Mapping[str, Any]) -> Callable[[Context], Inapplicable | None]:
    def applies(c: Context) -> Inapplicable | None:
        if not c.gpu:
            return Inapplicable("it concerns GPUs.")
        if row["vendor"] != c.facts.get("vendor"):
            return already(f"nothing reads it on this device: it is for {row['vendor'].upper()} GPUs.")
        here = {**c.facts.get("variables", {}), **dict(c.plan.env)}
        if all(here.get(name) == value for name, value in row["env"].items()):
            return already(f"{', '.join(f'{k}={v}' for k, v in row['env'].items())} holds already.")
        if row.get("needs") and c.parts and c.share(row["needs"]) < LEAST_SHARE:
            return Inapplicable(f"less than {LEAST_SHARE:.0%} of the step is {row['needs']}.")
        return None

    return applies


def _change(row: Mapping[str, Any]) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, env=tuple({**dict(plan.env), **row["env"]}.items()))


def _rung(row: Mapping[str, Any]) -> Rung:
    proofs = [told(f"variable {name}", value, name) for name, value in row["env"].items() if FILES not in value]
    if row.get("first"):
        proofs.append(counted("tuned_products", "tuned products in use"))
    shrinks = {part: (best, worst) for part, (best, worst) in row["shrinks"].items()}
    return Rung(
        row["name"], 1, row["title"], row["contract"], row["changes"],
        _applies(row), lambda c: shrinks, _change(row), row["effect"], both(*proofs),
        replaces=tuple(row.get("replaces", ())), prepares=float(row.get("prepares", 0)),
        first=tuple(row.get("first", {}).items()),
    )  # fmt: skip


ENVIRONMENT = tuple(_rung(row) for row in settings())
