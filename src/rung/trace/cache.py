"""Tables of large traces, kept as Parquet so that the next opening takes no parsing.

An entry is one directory (entries.py), named by what the trace file was: path, size, time of change and the version of
this format. It appears whole or not at all, and whatever is wrong with it is no error: the trace is read again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from rung.trace.entries import directory
from rung.trace.table import COLLECTIVES, COUNTERS, GRIDS, MEMORY, SCHEMA, Trace

ABANDONED = 86_400  # seconds after which an entry that is not whole is a killed process's
LIMIT = 20  # entries kept, the latest used ones

# The tables beside the events.
_BESIDE = {"counters": COUNTERS, "memory": MEMORY, "collectives": COLLECTIVES, "grids": GRIDS}
_WORK = ".partial-"


def load(name: str) -> Trace | str:
    """The trace of an entry; "" where there is none, a sentence where it cannot be used."""
    entry = directory() / name
    try:
        facts = json.loads((entry / "facts.json").read_text("utf-8"))
        events = pl.read_parquet(entry / "events.parquet")
        beside: dict[str, Any] = {name: pl.read_parquet(entry / f"{name}.parquet") for name in _BESIDE}
        schemas = [dict(table.schema) for table in (events, *beside.values())]
        if schemas != [SCHEMA, *_BESIDE.values()] or events.height != facts.pop("height"):
            return "The cached tables were not as expected; the trace was read again."
        os.utime(entry)  # used now: not the next one to go
        return Trace(events=events, **beside, **facts)
    except FileNotFoundError:
        return ""
    except Exception as error:  # whatever a damaged file makes polars raise, the trace itself is still there
        return f"The cached tables could not be read ({type(error).__name__}); the trace was read again."


def save(name: str, trace: Trace) -> str:
    """Keeps the trace under this name; "" or a sentence saying why not."""
    root = directory()
    work = ""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)  # traces name people's models and paths
        work = tempfile.mkdtemp(prefix=_WORK, dir=root)
        # lz4 opens twice as fast as zstd, and the files are small either way.
        trace.events.write_parquet(Path(work) / "events.parquet", compression="lz4", statistics=False)
        for table in _BESIDE:
            path = Path(work) / f"{table}.parquet"
            getattr(trace, table).write_parquet(path, compression="lz4", statistics=False)
        facts: dict[str, Any] = {
            "devices": trace.devices,
            "unread": trace.unread,
            "unread_ns": trace.unread_ns,
            "format": trace.format,
            "meta": trace.meta,
            "height": trace.events.height,
        }
        (Path(work) / "facts.json").write_text(json.dumps(facts), "utf-8")
        shutil.rmtree(root / name, ignore_errors=True)
        os.rename(work, root / name)
        _forget_old(root)
        return ""
    except Exception as error:
        if work:
            shutil.rmtree(work, ignore_errors=True)
        return f"The tables could not be kept in {root} ({type(error).__name__}): the next opening will parse again."


def _forget_old(root: Path) -> None:
    entries = [entry for entry in root.iterdir() if (entry / "facts.json").is_file()]
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    left = [work for work in root.glob(f"{_WORK}*") if time.time() - work.stat().st_mtime > ABANDONED]
    for entry in (*entries[LIMIT:], *left):
        shutil.rmtree(entry, ignore_errors=True)
