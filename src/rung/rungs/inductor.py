"""Level 2: Inductor's settings, one rung each; the facts are in inductor.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from rung.plan import Plan
from rung.rungs.compiling import ALONE, GRAPH_LAUNCH
from rung.rungs.proofs import all_of, counted, fewer, occurs, reported
from rung.rungs.requirements import (
    COMPILED,
    GPU,
    HALF,
    INFERENCE,
    REFUSED,
    TRAINING,
    captured,
    chip,
    share_of,
    unless,
)
from rung.rungs.rung import Context, Inapplicable, Requirement, Rung, TimeFactors, already
from rung.toml import Row, shipped_rows


class Setting(Row, kw_only=True, frozen=True):
    """A row of inductor.toml, whose comment says what its fields are. beside: its `with`."""

    name: str
    options: dict[str, Any]
    default: dict[str, Any]
    title: str
    changes: str
    effect: str
    mode: str = ""
    gpu: bool = False
    arch: str = ""
    chips: str = ""
    beside: str = msgspec.field(default="", name="with")
    needs: str = ""
    captured: dict[str, str] = msgspec.field(default_factory=dict)
    of: str = ""
    remaining: TimeFactors
    prepare_seconds: float
    remedy: bool = False
    env: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    fewer: str = ""
    graphs: bool = False
    replaces: tuple[str, ...] = ()
    versions: str
    source: str


@cache
def settings() -> tuple[Setting, ...]:
    return shipped_rows("rungs/inductor.toml", "setting", Setting)


def names() -> tuple[str, ...]:
    """The options of torch._inductor.config that the ladder may set."""
    return tuple(dict.fromkeys(name for row in settings() for name in row.options))


def made_for(name: str, arch: str) -> bool:
    """Whether the architecture has what a setting of this name is for; True for other rungs."""
    return all(re.fullmatch(row.arch or ".*", arch) for row in settings() if row.name == name)


def _requires(row: Setting) -> Iterator[Requirement]:
    if row.gpu:
        yield GPU
    if row.graphs:
        yield ALONE
    if row.mode:
        yield TRAINING if row.mode == "train" else INFERENCE
    if row.arch:
        yield chip(row.arch, row.chips, "others have nothing of the kind")
    yield Requirement("", lambda c: _settable(row, c))
    yield COMPILED
    if row.remedy:
        yield HALF
        yield REFUSED
    if row.beside:
        yield unless(
            row.beside.replace("_", "-"),
            lambda c: dict(c.plan.inductor).get(row.beside),
            f"it works together with {row.beside}, which is not in effect so far.",
        )
    if row.needs:
        yield share_of(row.needs)
    for operator, what in row.captured.items():
        yield captured(operator, what)


def _settable(row: Setting, c: Context) -> Inapplicable | None:
    here = c.facts.inductor or {}
    if unknown := [name for name in row.options if name not in here]:
        return Inapplicable(f"this torch's Inductor has no setting {unknown[0]}.")
    if all(here[name] == value for name, value in row.options.items()):
        return already(f"{', '.join(row.options)} has this value already.")
    return None


def _change(row: Setting) -> Callable[[Plan], Plan]:
    def change(plan: Plan) -> Plan:
        env = {**dict(plan.env), **row.env.get("amd", {})}
        options = {**dict(plan.inductor), **row.options}
        return replace(plan, inductor=tuple(options.items()), env=tuple(env.items()))

    return change


def _factors(row: Setting, c: Context) -> TimeFactors:
    """What is left of each part: less of it goes where the graph has others that the setting does not change."""
    counts = c.facts.captured or {}
    whole = counts.get(row.of, 0)
    changed = sum(counts.get(name, 0) for name in row.captured) / whole if whole else 1.0
    return {
        part: (1 - changed * (1 - best), 1 - changed * (1 - worst)) for part, (best, worst) in row.remaining.items()
    }


def _rung(row: Setting) -> Rung:
    proofs = [counted("compiled_graphs", "graphs compiled"),
              *(reported(f"inductor {name}", value, name) for name, value in row.options.items())]  # fmt: skip
    if row.fewer:
        proofs.append(fewer(row.fewer, row.fewer))
    if row.graphs:
        proofs.append(occurs(GRAPH_LAUNCH, "graph launches"))
    return Rung(
        name=row.name,
        level=2,
        title=row.title,
        contract="reassociated",
        changes=row.changes,
        requires=tuple(_requires(row)),
        remaining=lambda c: _factors(row, c),
        change=_change(row),
        effect=row.effect,
        proof=all_of(*proofs),
        replaces=row.replaces,
        prepare_seconds=row.prepare_seconds,
    )


INDUCTOR = tuple(_rung(row) for row in settings())
