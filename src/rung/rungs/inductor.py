"""Level 2: Inductor's settings, one rung each; the facts are in inductor.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rung.plan import Plan
from rung.rungs.compiling import GRAPH_LAUNCH
from rung.rungs.proofs import both, counted, fewer, occurs, told
from rung.rungs.requirements import COMPILED, GPU, INFERENCE, TRAINING, chip, share_of, unless
from rung.rungs.rung import Context, Inapplicable, Proof, Requirement, Rung, already
from rung.toml import shipped


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


def _requires(row: Mapping[str, Any]) -> Iterator[Requirement]:
    if row.get("gpu"):
        yield GPU
    if "mode" in row:
        yield TRAINING if row["mode"] == "train" else INFERENCE
    if "arch" in row:
        yield chip(row["arch"], row["chips"], "others have nothing of the kind")
    yield Requirement("", lambda c: _settable(row, c))
    yield COMPILED
    if "with" in row:
        yield unless(
            row["with"].replace("_", "-"),
            lambda c: dict(c.plan.inductor).get(row["with"]),
            f"it works together with {row['with']}, which is not in effect so far.",
        )
    if "needs" in row:
        yield share_of(row["needs"])


def _settable(row: Mapping[str, Any], c: Context) -> Inapplicable | None:
    here = c.facts.inductor or {}
    if unknown := [name for name in row["options"] if name not in here]:
        return Inapplicable(f"this torch's Inductor has no setting {unknown[0]}.")
    if all(here[name] == value for name, value in row["options"].items()):
        return already(f"{', '.join(row['options'])} has this value already.")
    return already(f"{row['never']}.") if "never" in row else None


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
        name=row["name"],
        level=2,
        title=row["title"],
        contract="reassociated",
        changes=row["changes"],
        requires=tuple(_requires(row)),
        shrinks=lambda c: shrinks,
        change=_change(row),
        effect=row["effect"],
        proof=both(*proofs),
        replaces=tuple(row.get("replaces", ())),
        prepares=float(row["prepares"]),
    )


INDUCTOR = tuple(_rung(row) for row in settings())
