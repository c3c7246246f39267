"""The value of a target's option: from the text that was typed to what the factory's parameter takes."""

from __future__ import annotations

import enum
import types
import typing
from pathlib import Path
from typing import Any

from rung.errors import UsageError

SWITCH = {**dict.fromkeys(("true", "yes", "1", "on"), True), **dict.fromkeys(("false", "no", "0", "off"), False)}


def kind_of(default: Any) -> Any:
    """What takes the place of an annotation."""
    if isinstance(default, (list, tuple)) and default:
        each = float if {type(value) for value in default} == {int, float} else type(default[0])
        return list[each] if isinstance(default, list) else tuple[each, ...]  # type: ignore[valid-type]
    return type(default)


def value_of(option: str, text: str, kind: Any) -> Any:
    """The text as a value of `kind`, an annotation; UsageError where it is none.

    What is of no kind that can be typed stays a text, for the factory to read.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _one_of(option, text, inner)
    if origin is typing.Literal:
        return _choice(option, text, {str(value): value for value in inner})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _choice(option, text, {str(one.value): one for one in kind} | {one.name: one for one in kind})
    if (origin or kind) in (list, tuple):
        each = [word.strip() for word in text.split(",")] if text else []
        kinds = inner if origin is tuple and inner[1:] != (...,) else inner[:1] * len(each)
        if inner and len(kinds) != len(each):
            raise UsageError(f"--{option} is {text!r}; it must be {len(kinds)} values with commas between them.")
        return (origin or kind)(
            value_of(option, word, k) for word, k in zip(each, kinds or [str] * len(each), strict=True)
        )
    if kind is bool:
        if text.lower() not in SWITCH:
            raise UsageError(f"--{option} is {text!r}; it must be true or false.")
        return SWITCH[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise UsageError(f"--{option} is {text!r}; it must be {number}.") from None
    return Path(text) if kind is Path else text


def _one_of(option: str, text: str, kinds: tuple[Any, ...]) -> Any:
    """The value of the first kind that takes the text; a plain text is the last resort."""
    if text.lower() == "none" and type(None) in kinds:
        return None
    refused: UsageError | None = None
    for kind in sorted((k for k in kinds if k is not type(None)), key=lambda k: k is str):
        try:
            return value_of(option, text, kind)
        except UsageError as error:
            refused = refused or error
    raise refused or UsageError(f"--{option} is {text!r}; it must be none.")


def _choice(option: str, text: str, choices: dict[str, Any]) -> Any:
    if text in choices:
        return choices[text]
    if text.lower() == "none" and "None" in choices:
        return None
    raise UsageError(f"--{option} is {text!r}; it must be one of {', '.join(choices)}.")
