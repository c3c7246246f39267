"""Options that are typed each time, from files: `[tool.rung]` in the nearest pyproject.toml, and rung.toml in the user's configuration
directory (docs/reference/configuration.md). Below all rooms.

A file holds plain values, and only those of KEYS. What names code, a recipe, a host or a secret is no key: a folder of somebody else's
may have such a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rung.errors import InputError, UsageError
from rung.files import read_text
from rung.toml import parse_toml, user_file

# What a value may be: (types of TOML, in words).
NUMBER = ((int, float), "a number")
WHOLE = ((int,), "a whole number")
SHARE = ((int, float, str), 'a share, as 0.02 or "2%"')
TEXT = ((str,), "a text")
SWITCH = ((bool,), "true or false")
Kind = tuple[tuple[type, ...], str]

# Each key is the option of the same name of these commands.
KEYS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "numerics": (TEXT, ("climb",)),
    "budget": (NUMBER, ("climb", "compare")),
    "deadline": (NUMBER, ("climb", "compare", "bench", "profile")),
    "device": (TEXT, ("climb", "compare", "bench", "profile")),
    "jobs": (WHOLE, ("climb",)),
    "slower-at-most": (SHARE, ("climb",)),
    "same-within": (SHARE, ("compare",)),
    "fail-if-slower": (SHARE, ("compare",)),
    "fail-if-inconclusive": (SWITCH, ("compare",)),
    "verify": (SWITCH, ("compare",)),
    "time": (NUMBER, ("bench",)),
    "preset": (TEXT, ("bench",)),
    "timer": (TEXT, ("bench",)),
    "steps": (WHOLE, ("profile",)),
    "gpu": (TEXT, ("estimate",)),
    "history": (SWITCH, ()),  # no option: whether runs are kept in the history
}
TABLES = tuple(dict.fromkeys(command for _, commands in KEYS.values() for command in commands))


@dataclass(frozen=True)
class Setting:
    """One value of a file. command: whose option it is, "" for all that have it; where: the file and the table."""

    key: str
    command: str
    value: Any
    where: str

    def holds_for(self, command: str) -> bool:
        return command in KEYS[self.key][1] and self.command in ("", command)


def settings(folder: Path | None = None) -> list[Setting]:
    """All values of both files, those first that win: the project's before the user's, a command's own table before what holds for all.

    Args:
        folder: Where to look for pyproject.toml, and in the folders above it. None: the current one.

    Raises:
        InputError: A file cannot be read, or is no TOML.
        UsageError: A key is unknown, or a value has another type.
    """
    return [*_of_project(folder), *_of_user()]


def settings_of(command: str) -> dict[str, Setting]:
    """The value of each option that the files set for a command. Raises as `settings`."""
    found: dict[str, Setting] = {}
    for setting in settings():
        if setting.holds_for(command):
            found.setdefault(setting.key, setting)
    return found


def keeps_history() -> bool:
    """Whether runs are kept in the history: RUNG_HISTORY, else `history` of a file, else yes. Raises as `settings`."""
    if said := os.environ.get("RUNG_HISTORY"):
        return said.lower() not in ("0", "off", "no", "false")
    return next((bool(setting.value) for setting in settings() if setting.key == "history"), True)


def _of_project(folder: Path | None) -> list[Setting]:
    here = Path.cwd() if folder is None else folder
    path = next((one for above in (here, *here.parents) if (one := above / "pyproject.toml").is_file()), None)
    if path is None:
        return []
    text = _text(path)
    if "rung" not in text:  # nothing for us: a mistake in it is no business of ours
        return []
    tool = _parsed(path, text).get("tool")
    table = tool.get("rung", {}) if isinstance(tool, dict) else {}
    return _checked(table, path, "tool.rung")


def _of_user() -> list[Setting]:
    path = user_file("RUNG_CONFIG", "rung.toml")
    return _checked(_parsed(path, _text(path)), path, "") if path.is_file() else []


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} could not be read: {getattr(error, 'strerror', None) or error}.") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}; mend it.") from error


def _checked(table: Any, path: Path, name: str) -> list[Setting]:
    """The values of a file: those of commands' own tables first. name: of its table, "" where the file has nothing else."""
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} must be a table, [{name}].")
    own: list[Setting] = []
    for command in TABLES:
        if command in table:
            own += _settings(table[command], command, path, f"{name}.{command}" if name else command)
    common = {key: value for key, value in table.items() if key not in TABLES}
    return [*own, *_settings(common, "", path, name)]


def _settings(table: Any, command: str, path: Path, name: str) -> Iterator[Setting]:
    where = f"{path} [{name}]" if name else str(path)
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: {command} is a command, and must be a table, [{name}].")
    keys = [key for key, (_, commands) in KEYS.items() if command in commands or not command]
    for key, value in table.items():
        if key not in keys:
            raise UsageError(f"{where}: {_unknown(key, command, keys)}")
        types, meant = KEYS[key][0]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UsageError(f"{where}: {key} must be {meant}, and is {_shown(value)}.")
        yield Setting(key, command, value, where)


def _unknown(key: str, command: str, keys: list[str]) -> str:
    if key in KEYS:
        commands = " and ".join(KEYS[key][1]) or "all commands"
        return f"{key} is not an option of `rung {command}`, but of {commands}."
    near = get_close_matches(key, [*keys, *(() if command else TABLES)], 1)
    return f"there is no key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(keys)}.")


def _shown(value: Any) -> str:
    return {dict: "a table", list: "a list", bool: str(value).lower()}.get(type(value)) or repr(value)
