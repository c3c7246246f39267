"""The environment variables that a recipe may name: those that Rung's own rungs set, with values of their kind.

A recipe comes from anywhere, and its variables go into the environment of processes: `LD_PRELOAD` or `PYTHONPATH` would run a
stranger's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rung.plan import Plan
from rung.rungs import LADDER
from rung.rungs.environment import FILES

LONGEST = 4096  # characters of a path


@cache
def settable() -> dict[str, tuple[str, ...]]:
    """By name, the values that rungs give a variable; `{files}` stands for a folder."""
    found: dict[str, tuple[str, ...]] = {}
    for rung in LADDER:
        for name, value in rung.change(Plan()).env:
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), value)))
    return found


def not_allowed(variables: Mapping[str, str]) -> str:
    """What is wrong with the first variable that no rung could have set; empty where all are right."""
    known = settable()
    for name, value in variables.items():
        if name not in known:
            return f"sets the variable {name!r}, which no rung of this version sets; a recipe may set {', '.join(sorted(known))}"
        if not any(_is_of_the_kind(value, usual) for usual in known[name]):
            return f"sets {name} to {value[:80]!r}; rungs set it to {' or '.join(known[name])}"
    return ""


def _is_of_the_kind(value: str, usual: str) -> bool:
    if usual.isdigit() and int(usual) > 1:  # a count; 0 and 1 switch, and one of them may have torch write a file
        return value.isascii() and value.isdigit() and len(value) <= 4
    if FILES in usual:  # a file of the climb, by its own name
        return value.endswith(usual.replace(FILES, "")) and value.isprintable() and len(value) <= LONGEST
    return value == usual
