"""Where Rung keeps what outlives a run: the history, and recipes by what they were made for."""

from __future__ import annotations

import os
from pathlib import Path


def data_directory() -> Path:
    """$RUNG_DATA, else `rung` in the user's data directory (XDG)."""
    if chosen := os.environ.get("RUNG_DATA"):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "rung"
