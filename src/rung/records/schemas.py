"""JSON Schemas of the documents, generated from their structs: `python -m rung.records.schemas docs/schemas` writes them.

A document's `schema` is the version of its fields: it goes up when one changes its meaning or is taken away. A field that is added
leaves it as it is, so a reader should pass over what it does not know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from rung.records.analyze import Overview
from rung.records.bench import Bench, Benchmarks, Failed
from rung.records.climb import ClimbRun, NotBegun
from rung.records.compare import Comparison, Ranking, Saved
from rung.records.diff import Difference
from rung.records.history import Collected, Entries, Entry, Trend
from rung.records.job import Job
from rung.records.profile import Planned, Profile
from rung.records.slurm_job import ListedJob
from rung.records.watch import Watched

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "bench": ("rung bench --json", Bench | Failed | list[Bench | Failed]),
    "benchmarks": ("pytest --rung-save", Benchmarks),
    "analyze": ("rung analyze --json", Overview),
    "compare": ("rung compare --json", Comparison | Ranking | Saved),
    "diff": ("rung diff --json", Difference),
    "profile": ("rung profile --json", Profile | Planned),
    "job": ("rung mcp", Job),
    "jobs": ("rung jobs --json", list[ListedJob]),
    "watch": ("rung watch --json", Watched),
    "history": ("rung runs list|show|tag|export|trend|gc --json", Entries | Entry | Trend | Collected),
    "climb": ("rung climb --json` or `rung report --json", ClimbRun | NotBegun),
}


def schema(name: str) -> str:
    """The JSON Schema of a document, as text."""
    command, kind = DOCUMENTS[name]
    found = msgspec.json.schema(kind)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"What `{command}` prints"}
    return json.dumps(head | found, indent=1) + "\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.json").write_text(schema(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
