"""The entries of the cache: where they are and how they are named. It imports no polars: what is kept opens without it."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

VERSION = 8  # to be raised whenever a reader gives another table for the same file
THRESHOLD = 4_000_000  # bytes: what is smaller is read as quickly as it is opened here


def directory() -> Path:
    """Where entries are: $RUNG_CACHE, else rung/traces in the user's cache directory."""
    chosen = os.environ.get("RUNG_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rung" / "traces"


def worthwhile(path: Path) -> bool:
    """Whether the file is large enough for its tables to be kept."""
    try:
        return path.stat().st_size >= THRESHOLD
    except OSError:  # the reader says what is wrong with it
        return False


def key(path: Path) -> str:
    """The name of the entry for the file as it is now, read with the polars that is installed now."""
    polars = find_spec("polars")
    return digest(VERSION, state(Path(polars.origin)) if polars and polars.origin else "", path.resolve(), state(path))


def state(path: Path) -> str:
    """What changes when a file does; "" where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return ""
    return f"{path}\n{facts.st_size}\n{facts.st_mtime_ns}"


def digest(*facts: object) -> str:
    return hashlib.sha256("\n".join(map(str, facts)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
