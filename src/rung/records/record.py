"""What all records have in common: how they become plain values, and how they are read again."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

SCHEMA = 1  # goes up when a field changes its meaning or is taken away; one that is added leaves it as it is
Scalar = bool | int | float | str | None


class Part(msgspec.Struct, kw_only=True):
    """Part of a document. A field that is UNSET is not in the document at all; null is a value."""


T = TypeVar("T")


def plain(record: msgspec.Struct) -> dict[str, Any]:
    """Dictionaries, lists and plain values, as `rung.runs.to_json` writes them. What is not finite is null there."""
    found: dict[str, Any] = msgspec.to_builtins(record, str_keys=True, enc_hook=_as_it_is)
    return found


def take(whole: msgspec.Struct, part: msgspec.Struct) -> None:
    """Takes over all fields of a part, which the whole has by the same names."""
    for name in part.__struct_fields__:
        setattr(whole, name, getattr(part, name))


def _as_it_is(value: Any) -> Any:
    """What is a text or a number, and more than that, such as torch's version or a figure of numpy."""
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError(f"a {type(value).__name__} is not a plain value")


def record_of(kind: type[T], values: Any) -> T:
    """A record out of plain values, such as a worker answers, or out of a dataclass. Raises msgspec.ValidationError for what is none."""
    return msgspec.convert(msgspec.to_builtins(values, str_keys=True, enc_hook=_as_it_is), kind)
