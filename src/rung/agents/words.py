"""From the arguments of a tool to the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from rung.errors import UsageError

Value = bool | int | float | str | Sequence[str] | None
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


def options(**given: Value) -> list[str]:
    """`--name=value` of each that is given: in one word, so that no value is read as another option. True is the option alone; a list is
    joined by commas."""
    found = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not None and value is not False and value != []:
            found.append(f"{flag}={value if isinstance(value, str | int | float) else ','.join(value)}")
    return found


def of_the_target(given: Mapping[str, bool | int | float | str], own: Collection[str]) -> list[str]:
    """Options of a target's own. own: the flags of the command itself, which would take them for its own. Raises UsageError for one of
    these: each has an argument of the tool, where it is allowed."""
    for name in given:
        if not _NAME.fullmatch(name) or f"--{name.replace('_', '-')}" in own or f"--{name}" in own:
            raise UsageError(
                f"{name!r} is no option of a target: `options` are the parameters of its function, as in {{'batch': 8}}."
            )
    return [f"--{name.replace('_', '-')}={_text(value)}" for name, value in given.items()]


def _text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
