"""Answers about large traces, kept beside their cached tables: asked again, nothing is worked out, and no table is opened.

An answer holds as long as the trace, the captures that lie beside it, this program and the user's own tables are what they were.
What cannot be kept or read is no error: it is worked out again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import rung
from rung.errors import RungError
from rung.runs import write_whole
from rung.toml import user_file
from rung.trace import entries

MOST = 64  # answers of one trace; the latest stay


def place(path: Path, question: dict[str, Any], files: Sequence[Path] = ()) -> Path | None:
    """Where the answer to a question about a trace is kept, whether it is there or not; None where none is: of small
    files and of folders.

    question: all that the answer depends on beside the trace. files: the user's, that it depends on, too.
    """
    if not path.is_file() or not entries.worthwhile(path):
        return None
    own = [*files, user_file("RUNG_PEAKS", "peaks.toml"), Path(os.environ.get("RUNG_CATEGORIES", ""))]
    facts = [json.dumps(question, sort_keys=True, default=str), str(path), program(), *map(entries.state, own)]
    try:
        beside = [Path(entry) for entry in os.scandir(path.parent) if "capture" in entry.name.lower()]
        name = entries.digest(*facts, *sorted(map(entries.state, beside)))
        return entries.directory() / entries.key(path) / "answers" / f"{name}.json"
    except OSError:
        return None


def load(where: Path | None) -> Any:
    """The answer, None where there is none."""
    if where is None:
        return None
    try:
        answer = json.loads(where.read_text("utf-8"))
        os.utime(where)
        os.utime(where.parent.parent)  # used now: neither it nor its tables are the next to go
        return answer
    except (OSError, ValueError, RecursionError):
        return None


def save(where: Path | None, answer: Any) -> None:
    """Keeps an answer, where the tables of the trace are kept."""
    if where is None or not (where.parent.parent / "facts.json").is_file():
        return
    with contextlib.suppress(OSError, RungError):
        write_whole(where, json.dumps(answer))
        there = sorted(where.parent.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in there[MOST:]:
            old.unlink()


@cache
def program() -> str:
    """What changes when this program does."""
    root = Path(rung.__file__).parent
    files = (
        Path(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith((".py", ".toml"))
    )
    return entries.digest(rung.__version__, *sorted(map(entries.state, files)))
