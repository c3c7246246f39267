"""Level 2: Inductor's settings, one rung each; the facts are in inductor.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rung.plan import Plan
from rung.rungs.graphs import GRAPH_LAUNCH
from rung.rungs.proofs import both, counted, fewer, occurs, told
from rung.rungs.rung import FOR_GPUS, OTHER_CHIP, OTHER_MODE, Context, Inapplicable, Proof, Rung, already
from rung.toml import shipped

LEAST_SHARE = 0.02  # of the step: with less of what a setting works on, there is nothing to gain


def settings() -> tuple[Mapping[str, Any], ...]:
    """The rows of inductor.toml."""
    return tuple(shipped("rungs/inductor.toml")["setting"])


def names() -> tuple[str, ...]:
    """The options of torch._inductor.config that the ladder may set."""
    return tuple(dict.fromkeys(name for row in settings() for name in row["options"]))


def made_for(name: str, arch: str) -> bool:
    """Whether the architecture has what a setting of this name is for; True for other rungs."""
    return all(re.fullmatch(row.get("arch", ".*"), arch) for row in settings() if row["name"] == name)


def never(name: str) -> str:
    """Why a setting of this name is in effect nowhere; empty for others, and for other rungs."""
    return next((str(row["never"]) for row in settings() if row["name"] == name and "never" in row), "")


def _applies(row: Mapping[str, Any]) -> Callable[[Context], Inapplicable | None]:
    def applies(c: Context) -> Inapplicable | None:
        if row.get("gpu") and not c.gpu:
            return Inapplicable("it concerns GPUs.", group=FOR_GPUS)
        if row.get("mode") and row["mode"] != c.facts["mode"]:
            return Inapplicable(f"it is for workloads in mode {row['mode']}.", group=OTHER_MODE)
        if not made_for(row["name"], str(c.facts.get("arch", ""))):
            return Inapplicable(f"{c.facts.get('arch')} has nothing of the kind.", group=OTHER_CHIP)
        here = c.facts.get("inductor", {})
        if unknown := [name for name in row["options"] if name not in here]:
            return Inapplicable(f"this torch's Inductor has no setting {unknown[0]}.")
        if all(here[name] == value for name, value in row["options"].items()):
            return already(f"{', '.join(row['options'])} has this value already.")
        if "never" in row:
            return already(f"{row['never']}.")
        if not c.plan.compiles:
            return Inapplicable("it is a setting of torch.compile, which is not in effect so far.")
        if row.get("with") and not dict(c.plan.inductor).get(row["with"]):
            return Inapplicable(f"it works together with {row['with']}, which is not in effect so far.")
        if row.get("needs") and c.parts and c.share(row["needs"]) < LEAST_SHARE:
            return Inapplicable(f"less than {LEAST_SHARE:.0%} of the step is {row['needs'].replace('_', ' ')}.")
        return None

    return applies


def _change(row: Mapping[str, Any]) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        if "never" in row:
            return plan
        env = {**dict(plan.env), **row.get("env", {}).get("amd", {})}
        return replace(plan, inductor=(*plan.inductor, *row["options"].items()), env=tuple(env.items()))

    return change


def _rung(row: Mapping[str, Any]) -> Rung:
    proofs = [counted("compiled_graphs", "graphs compiled"),
              *(told(f"inductor {name}", value, name) for name, value in row["options"].items())]  # fmt: skip
    if row.get("fewer"):
        proofs.append(fewer(row["fewer"], row["fewer"]))
    if row.get("graphs"):
        proofs.append(occurs(GRAPH_LAUNCH, "graph launches"))
    if "never" in row:
        proofs = [lambda e: Proof(False, row["never"])]
    shrinks = {part: (best, worst) for part, (best, worst) in row["shrinks"].items()}
    return Rung(
        row["name"], 2, row["title"], "reassociated", row["changes"],
        _applies(row), lambda c: shrinks, _change(row), row["effect"], both(*proofs),
        replaces=tuple(row.get("replaces", ())), prepares=float(row["prepares"]),
    )  # fmt: skip


INDUCTOR = tuple(_rung(row) for row in settings())
