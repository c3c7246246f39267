"""Rung makes a PyTorch workload faster, one measured and verified step at a time.

Importing it loads neither torch nor polars; the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "1.0.0rc3"

_WHERE = {
    "Climbed": "rung.results",
    "Comparison": "rung.results",
    "Measurement": "rung.results",
    "Recipe": "rung.recipes.recipe",
    "RungError": "rung.errors",
    "Side": "rung.side",
    "Workload": "rung.workload.base",
    "apply": "rung.recipes.apply",
    "bench": "rung.api",
    "climb": "rung.climbing",
    "compare": "rung.api",
    "watch": "rung.watching.sampler",
}

__all__ = [
    "Climbed",
    "Comparison",
    "Measurement",
    "Recipe",
    "RungError",
    "Side",
    "Workload",
    "__version__",
    "apply",
    "bench",
    "climb",
    "compare",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        try:
            return getattr(importlib.import_module(_WHERE[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from rung.errors import NO_TORCH, UsageError

            raise UsageError(NO_TORCH) from None
    raise AttributeError(f"module 'rung' has no attribute {name!r}")
