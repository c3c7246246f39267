"""What kind of work a kernel or an operator does, told by its name. The names are data: categories.toml."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CATEGORIES = (
    "gemm",
    "attention",
    "convolution",
    "normalization",
    "elementwise",
    "reduction",
    "softmax",
    "embedding",
    "optimizer",
    "communication",
    "copy",
    "other",
)


@lru_cache(maxsize=1)
def _families() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    text = (resources.files("rung.analysis") / "categories.toml").read_text("utf-8")
    families: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for table, entries in tomllib.loads(text).items():
        families[table] = [(e["category"], re.compile("|".join(e["patterns"]))) for e in entries]
    return families


def _classify(table: str, name: str) -> str:
    return next((category for category, pattern in _families()[table] if pattern.search(name)), "other")


@lru_cache(maxsize=65536)
def classify_kernel(name: str) -> str:
    """The category (one of CATEGORIES) of a GPU kernel, from its name as recorded, mangled or not."""
    return _classify("kernel", name)


@lru_cache(maxsize=65536)
def classify_op(name: str) -> str:
    """The category (one of CATEGORIES) of a host operator such as `aten::addmm`."""
    return _classify("op", name)
