"""Defaults of options from the user's files (`rung.config`). Here alone they meet argparse: what is typed still wins."""

from __future__ import annotations

import argparse
from typing import Any

from rung.config import TABLES, Setting, settings_of
from rung.errors import UsageError


def set_defaults(parser: argparse.ArgumentParser, command: str) -> None:
    """Has a command's parser take what the files set for it. Raises UsageError for a value that the option does not take."""
    if command not in TABLES:  # whose files are not read, either
        return
    options = {flag: action for action in parser._actions for flag in action.option_strings}
    for key, setting in settings_of(command).items():
        action = options[f"--{key}"]
        parser.set_defaults(**{action.dest: _value(action, setting)})


def _value(action: argparse.Action, setting: Setting) -> Any:
    """As if it had been typed."""
    if isinstance(setting.value, bool):
        return setting.value
    text = str(setting.value)
    convert = action.type if callable(action.type) else str
    try:
        value = convert(text)
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise UsageError(f"{setting.where}: {setting.key}: {error}.") from None
    if action.choices is not None and value not in action.choices:
        known = ", ".join(map(str, action.choices))
        raise UsageError(f"{setting.where}: {setting.key} must be one of {known}, and is {text!r}.")
    return value
