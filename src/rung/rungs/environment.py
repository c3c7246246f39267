"""Level 1: variables that a worker is started with; the facts are in environment.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rung.plan import CONTRACTS, Plan
from rung.rungs.precision import allowed
from rung.rungs.proofs import both, counted, told
from rung.rungs.rung import FOR_GPUS, Context, Inapplicable, Rung, already
from rung.toml import shipped

LEAST_SHARE = 0.02  # of the step: with less of what a setting works on, there is nothing to gain
LEAST_MEMORY = 0.2  # of what is reserved, not in use at the peak: with less, sparing it is not worth the restarts
FILES = "{files}"


def _table() -> Mapping[str, Any]:
    return shipped("rungs/environment.toml")


def settings() -> tuple[Mapping[str, Any], ...]:
    """The rows of environment.toml."""
    return tuple(_table()["setting"])


def left() -> Mapping[str, str]:
    """Variables that doctor lists and no rung sets, and why."""
    found: Mapping[str, str] = _table()["left"]
    return found


def _applies(row: Mapping[str, Any]) -> Callable[[Context], Inapplicable | None]:
    def applies(c: Context) -> Inapplicable | None:
        if not c.gpu:
            return Inapplicable("it concerns GPUs.", group=FOR_GPUS)
        if row["vendor"] not in ("any", c.facts.get("vendor")):
            return already(f"nothing reads it on this device: it is for {row['vendor'].upper()} GPUs.")
        if not re.fullmatch(row.get("arch", ".*"), str(c.facts.get("arch", ""))):
            return already(f"nothing reads it on {c.facts.get('arch')}.")
        if row.get("before") and not _older(str(c.facts.get("torch", "")), row["before"]):
            return already(f"torch {c.facts.get('torch')} does not read it: it is for those before {row['before']}.")
        if row["contract"] in CONTRACTS and (no := allowed(c, row["contract"])):
            return no
        here = {**c.facts.get("variables", {}), **dict(c.plan.env)}
        if all(here.get(name) == value for name, value in row["env"].items()):
            return already(f"{', '.join(f'{k}={v}' for k, v in row['env'].items())} holds already.")
        if chosen := [f"{name}={here[name]}" for name in row.get("unless", ()) if here.get(name)]:
            return already(f"{chosen[0]} is set, and is left as it is.")
        if row.get("with") and not getattr(c.plan, row["with"]):
            return Inapplicable(
                f"it matters together with {row['with'].replace('_', '-')}, which is not in effect so far."
            )
        if row.get("spares") == "memory" and (no := _no_memory_to_spare(c)):
            return no
        if row.get("needs") and c.parts and c.share(row["needs"]) < LEAST_SHARE:
            return Inapplicable(f"less than {LEAST_SHARE:.0%} of the step is {row['needs']}.")
        return None

    return applies


def _no_memory_to_spare(c: Context) -> Inapplicable | None:
    used, reserved = c.memory.get("allocated", 0), c.memory.get("reserved", 0)
    if not reserved or used < (1 - LEAST_MEMORY) * reserved:
        return None
    return Inapplicable(
        f"{used / reserved:.0%} of the memory that is reserved is in use at the peak: there is little to spare."
    )


def _older(version: str, than: str) -> bool:
    """Whether a version of torch (`2.9.1+rocm6.4`) comes before another one (`2.13`); one that is not known does."""
    numbers = [tuple(int(n) for n in re.findall(r"\d+", text.partition("+")[0])[:2]) for text in (version, than)]
    return numbers[0] < numbers[1]


def _change(row: Mapping[str, Any]) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, env=tuple({**dict(plan.env), **row["env"]}.items()))


def _rung(row: Mapping[str, Any]) -> Rung:
    proofs = [told(f"variable {name}", value, name) for name, value in row["env"].items() if FILES not in value]
    proofs += [counted(key, what) for key, what in row.get("shows", {}).items()]
    if row.get("first"):
        proofs.append(counted("tuned_products", "tuned products in use"))
    shrinks = {part: (best, worst) for part, (best, worst) in row["shrinks"].items()}
    return Rung(
        row["name"], 1, row["title"], row["contract"], row["changes"],
        _applies(row), lambda c: shrinks, _change(row), row["effect"], both(*proofs),
        replaces=tuple(row.get("replaces", ())), prepares=float(row.get("prepares", 0)),
        spares=row.get("spares", "step"), first=tuple(row.get("first", {}).items()),
    )  # fmt: skip


ENVIRONMENT = tuple(_rung(row) for row in settings())
