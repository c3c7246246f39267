"""Level 1: variables that a worker is started with; the facts are in environment.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import msgspec

from rung.plan import CONTRACTS, Plan
from rung.rungs.proofs import all_of, counted, reported
from rung.rungs.requirements import GPU, RANKS, allowed, one_process, share_of, unless
from rung.rungs.rung import Context, Inapplicable, Requirement, Rung, TimeFactors, already
from rung.toml import Row, shipped, shipped_rows

LEAST_MEMORY = 0.2  # of what is reserved, not in use at the peak: with less, sparing it is not worth the restarts
FILES = "{files}"


class Setting(Row, kw_only=True, frozen=True):
    """A row of environment.toml, whose comment says what its fields are. beside: its `with`."""

    name: str
    env: dict[str, str]
    tuning_env: dict[str, str] = msgspec.field(default_factory=dict)
    vendor: str
    arch: str = ""
    chips: str = ""
    fewest: int = 0
    before: str = ""
    beside: str = msgspec.field(default="", name="with")
    unless: tuple[str, ...] = ()
    title: str
    changes: str
    effect: str
    contract: str
    needs: str = ""
    remaining: TimeFactors
    prepare_seconds: float = 0.0
    improves: str = "step"
    ranks: bool = False
    shows: dict[str, str] = msgspec.field(default_factory=dict)
    replaces: tuple[str, ...] = ()


@cache
def settings() -> tuple[Setting, ...]:
    return shipped_rows("rungs/environment.toml", "setting", Setting)


def left() -> Mapping[str, str]:
    """Variables that doctor lists and no rung sets, and why."""
    found: Mapping[str, str] = shipped("rungs/environment.toml")["left"]
    return found


def _requires(row: Setting) -> Iterator[Requirement]:
    yield GPU
    if row.ranks:
        yield RANKS
    if row.vendor != "any":
        what = f"{row.vendor.upper()} GPUs"
        yield _read(what, lambda c: c.facts.vendor == row.vendor, f"on this device: it is for {what}")
    if row.arch:
        yield Requirement(
            row.chips,
            lambda c: (
                None if re.fullmatch(row.arch, str(c.facts.arch)) else already(f"nothing reads it on {c.facts.arch}.")
            ),
        )
    if row.fewest:
        yield Requirement(
            f"{row.fewest} ranks and more",
            lambda c: (
                None if c.facts.ranks >= row.fewest else already(f"it is ignored with fewer than {row.fewest} ranks.")
            ),
        )
    if row.before:
        old = f"torch before {row.before}"
        yield _read(old, lambda c: _older(str(c.facts.torch), row.before), f"in this torch: it is for {old}")
    if row.contract in CONTRACTS[1:]:
        yield allowed(row.contract)
    yield Requirement("", lambda c: _set_already(row, c))
    if row.beside:
        other = row.beside.replace("_", "-")
        yield unless(
            other,
            lambda c: getattr(c.plan, row.beside),
            f"it matters together with {other}, which is not in effect so far.",
        )
    if row.tuning_env:
        yield one_process("what the run before it finds lies in a file, which ranks would write over each other")
    if row.improves == "memory":
        yield Requirement("reserved memory that is not in use", _no_memory_to_spare)
    if row.needs:
        yield share_of(row.needs)


def _read(what: str, holds: Callable[[Context], object], elsewhere: str) -> Requirement:
    """Elsewhere the variable changes nothing."""
    return Requirement(what, lambda c: None if holds(c) else already(f"nothing reads it {elsewhere}."))


def _set_already(row: Setting, c: Context) -> Inapplicable | None:
    here = {**(c.facts.variables or {}), **dict(c.plan.env)}
    if all(here.get(name) == value for name, value in row.env.items()):
        return already(f"{', '.join(f'{k}={v}' for k, v in row.env.items())} holds already.")
    # What the plan sets is of a rung that this one may replace.
    users = c.facts.variables or {}
    if chosen := [f"{name}={users[name]}" for name in row.unless if users.get(name)]:
        return already(f"{chosen[0]} is set, and is left as it is.")
    return None


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


def _change(row: Setting) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, env=tuple({**dict(plan.env), **row.env}.items()))


def _rung(row: Setting) -> Rung:
    proofs = [reported(f"variable {name}", value, name) for name, value in row.env.items() if FILES not in value]
    proofs += [counted(key, what) for key, what in row.shows.items()]
    if row.tuning_env:
        proofs.append(counted("tuned_products", "tuned products in use"))
    return Rung(
        name=row.name,
        level=1,
        title=row.title,
        contract=row.contract,
        changes=row.changes,
        requires=tuple(_requires(row)),
        remaining=lambda c: row.remaining,
        change=_change(row),
        effect=row.effect,
        proof=all_of(*proofs),
        replaces=row.replaces,
        prepare_seconds=row.prepare_seconds,
        improves=row.improves,
        tuning_env=tuple(row.tuning_env.items()),
    )


ENVIRONMENT = tuple(_rung(row) for row in settings())
