"""Rung makes a PyTorch workload faster, one measured and verified step at a time.

Importing it loads neither torch nor polars; the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "Recipe": "rung.ladder.recipe",
    "RungError": "rung.errors",
    "Workload": "rung.workload.base",
    "apply": "rung.ladder.apply",
    "bench": "rung.ladder.bench",
    "climb": "rung.ladder.api",
}

__all__ = ["Recipe", "RungError", "Workload", "__version__", "apply", "bench", "climb"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'rung' has no attribute {name!r}")
