"""TOML: the tables that lie beside the code, and where files of the user's lie."""

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


class Row(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A row of a table that lies beside the code. A name that it does not know is a mistake in the file."""


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text; ValueError where it is no TOML, with the line and column."""
    tables: dict[str, Any] = tomllib.loads(text)
    return tables


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else as_toml(name)


def as_toml(value: str | float) -> str:
    """A text or a number. TOML differs from JSON in what is not finite, beyond 16 bits, and in DEL."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@cache
def shipped(path: str) -> Mapping[str, Any]:
    """The tables of a file of the package, as in "hardware/peaks.toml". Read once and shared: not to be changed."""
    return parse_toml(resources.files("rung").joinpath(path).read_text("utf-8"))


def shipped_rows(path: str, table: str, kind: type[T]) -> tuple[T, ...]:
    """The rows of a table of such a file as records. Raises msgspec.ValidationError for a row that is none."""
    return tuple(msgspec.convert(shipped(path)[table], list[kind]))  # type: ignore[valid-type]


def user_file(variable: str, name: str) -> Path:
    """Where the user's own file is, whether it is there or not: what the variable names, else rung/<name> in the configuration
    directory."""
    if chosen := os.environ.get(variable):
        return Path(chosen)
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "rung" / name
