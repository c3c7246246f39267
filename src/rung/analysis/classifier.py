"""What kind of work a kernel or an operator does, told by its name. The names are data: categories.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rung.analysis.communicators import Communicator, communicating_kernel, communicating_op
from rung.errors import InputError
from rung.files import read_text
from rung.toml import parse_toml, shipped

CATEGORIES = (
    "gemm",
    "attention",
    "convolution",
    "normalization",
    "elementwise",
    "reduction",
    "softmax",
    "embedding",
    "moe",
    "optimizer",
    "triton",
    "communication",
    "copy",
    "other",
)
OWN_FILE = "RUNG_CATEGORIES"  # the environment variable that names a file of one's own


class Kind(NamedTuple):
    """category: one of CATEGORIES, or of the user's own; detail: "" or what kind of it, as in "backward"."""

    category: str
    detail: str


class Family(NamedTuple):
    """Names of one kind, by the patterns that they match."""

    kind: Kind
    patterns: str

    def has(self, name: str) -> bool:
        return _compiled(self.patterns).search(name) is not None


@lru_cache(maxsize=1024)  # when a name comes that far: to compile all of them takes longer than to read a small trace
def _compiled(patterns: str) -> re.Pattern[str]:
    return re.compile(patterns)


_END = "(Host|HOST|Device|DEVICE|Peer|H|D|P)"
_DIRECTION = re.compile(f"(?:(?<![A-Za-z])|(?<=Copy)){_END}(?:to|To|_TO_|-to-){_END}")
OTHER = Kind("other", "")
_own: list[Path] = []


def use(path: Path | None) -> None:
    """From now on the families of this TOML file are tried before the built-in ones; of $RUNG_CATEGORIES if None.

    It has the form of categories.toml: tables [[kernel]] and [[op]] with `category`, `patterns` (regular expressions)
    and, if wanted, `detail`. Raises InputError where it is not so.
    """
    before = list(_own)
    _own[:] = [path] if path else []
    for cached in (_families, _own_families, kernel_kind, op_kind):
        cached.cache_clear()
    try:
        _families()
    except InputError:
        _own[:] = before
        raise


@lru_cache(maxsize=1)
def _families() -> dict[str, list[Family]]:
    families = _parsed(shipped("analysis/categories.toml"))
    return {table: _own_families().get(table, []) + families[table] for table in families}


@lru_cache(maxsize=1)
def _own_families() -> dict[str, list[Family]]:
    own = _own[0] if _own else Path(os.environ[OWN_FILE]) if os.environ.get(OWN_FILE) else None
    if own is None:
        return {}
    try:
        families = _parsed(parse_toml(read_text(own)))
        for family in chain(*families.values()):
            _compiled(family.patterns)
        return families
    except OSError as error:
        raise InputError(f"{own}: the categories cannot be read ({error.strerror}).") from None
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise InputError(
            f"{own} has no families of names ({error}): it needs [[kernel]] or [[op]] tables with a category and patterns."
        ) from None


def _parsed(tables: Mapping[str, Any]) -> dict[str, list[Family]]:
    return {
        table: [
            Family(Kind(str(entry["category"]), str(entry.get("detail", ""))), "|".join(entry["patterns"]))
            for entry in entries
        ]
        for table, entries in tables.items()
    }


def _kind(table: str, name: str, communicator: Communicator | None) -> Kind:
    """The user's own families, what communicates, the built-in families: in this order."""
    families = _own_families().get(table, [])
    if communicator is not None and not any(family.has(name) for family in families):
        return Kind("communication", communicator.detail)
    return next((family.kind for family in _families()[table] if family.has(name)), OTHER)


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> Kind:
    """The kind of a GPU kernel, from its name as recorded, mangled or not."""
    return _kind("kernel", name, communicating_kernel(name))


def named_by_user(name: str) -> bool:
    """Whether a user's own family knows this kernel: then no operator knows it better."""
    return any(family.has(name) for family in _own_families().get("kernel", []))


@lru_cache(maxsize=65536)
def op_kind(name: str) -> Kind:
    """The kind of a host operator such as `aten::addmm`."""
    return _kind("op", name, communicating_op(name))


def copy_direction(name: str, kind: str) -> str:
    """HtoD, DtoH and so on for the name of a copy as any profiler writes it; else `kind`, as in memset."""
    found = _DIRECTION.search(name)
    return f"{found[1][0]}to{found[2][0]}" if found else kind


def classify_kernel(name: str) -> str:
    """The category of a GPU kernel."""
    return kernel_kind(name).category


def classify_op(name: str) -> str:
    """The category of a host operator."""
    return op_kind(name).category
