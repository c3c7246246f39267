"""JSON Schemas of the documents, generated from their structs: `python -m rung.records.schemas docs/schemas` writes them.

A document's `schema` is the version of its fields: it goes up when one changes its meaning or is taken away. A field that is added
leaves it as it is, so a reader should pass over what it does not know.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from rung.records.analyze import Calls, Overview, Rows, Script, Tables
from rung.records.bench import Bench, Benchmarks, Failed
from rung.records.climb import ClimbRun, Climbs, ListedRun, NotBegun
from rung.records.compare import Comparison, Ranking, Saved
from rung.records.diff import Difference
from rung.records.doctor import Audit
from rung.records.estimate import Estimate
from rung.records.history import Collected, Entries, Entry, Trend
from rung.records.job import Job, Refused
from rung.records.kernels import Inspected, Kernels
from rung.records.profile import Planned, Presets, Profile
from rung.records.recipe import Applied, ListedRung
from rung.records.slurm_job import ListedJob
from rung.records.watch import Watched

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "bench": ("rung bench --json", Bench | Failed | list[Bench | Failed]),
    "benchmarks": ("pytest --rung-save", Benchmarks),
    "analyze": ("rung analyze --json", Overview | list[Overview]),
    "tables": ("rung analyze --show NAMES --json", Tables | list[Tables]),
    "analyses": ("rung analyze --show list --json", dict[str, str]),
    "query": ("rung query --json", Rows),
    "replay": ("rung replay --json", Script),
    "calls": ("rung replay --list --json", Calls),
    "estimate": ("rung estimate --json", Estimate),
    "compare": ("rung compare --json", Comparison | Ranking | Saved),
    "diff": ("rung diff --json", Difference),
    "profile": ("rung profile --json", Profile | Planned | Presets),
    "job": ("rung mcp", Job),
    "jobs": ("rung jobs --json", list[ListedJob]),
    "watch": ("rung watch --json", Watched),
    "history": ("rung runs list|show|tag|export|trend|gc --json", Entries | Entry | Trend | Collected),
    "climb": ("rung climb --json` or `rung report --json", ClimbRun | NotBegun | Climbs),
    "runs": ("rung runs --json", list[ListedRun]),
    "rungs": ("rung rungs --json", list[ListedRung]),
    "apply": ("rung apply --json", Applied),
    "kernels": ("rung kernels list|inspect --json", Kernels | Inspected),
    "doctor": ("rung doctor --json", Audit),
    "error": ("any command with --json that has no answer", Refused),
}


def schema(name: str) -> str:
    """The JSON Schema of a document, as text."""
    command, kind = DOCUMENTS[name]
    found = _alike(msgspec.json.schema(kind))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"What `{command}` prints"}
    return json.dumps(head | found, indent=1) + "\n"


def _alike(found: Any) -> Any:
    """A schema as every version of msgspec since 0.19 gives it: null last of several types, and no indentation of docstrings."""
    if isinstance(found, list):
        return [_alike(item) for item in found]
    if not isinstance(found, dict):
        return found
    made = {name: _alike(item) for name, item in found.items()}
    if isinstance(made.get("description"), str):
        made["description"] = inspect.cleandoc(made["description"])
    if "anyOf" in made:
        made["anyOf"].sort(key=lambda one: one == {"type": "null"})
    return made


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.json").write_text(schema(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
