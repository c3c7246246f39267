"""How far predictions were off, by rung, over all climbs below some folders:

    python benchmarks/ladder/predictions.py rung-runs hf

prints Markdown: rung | n | median absolute error in points | inside the range. A point is a hundredth of the step's time
(docs/internals/ladder.md, "Predictions"). Attempts that the budget cut short are left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rung.errors import RungError
from rung.ladder.climb.answer import prediction_error
from rung.records.climb import Attempt
from rung.runs import Run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", type=Path, help="run directories of `rung climb`, or folders that hold some")
    attempts: list[Attempt] = []
    for folder in parser.parse_args().run:
        found = sorted(path.parent for path in folder.rglob("manifest.json") if (path.parent / "attempts").is_dir())
        if not found:
            print(f"{folder}: there is no climb in it", file=sys.stderr)
        for directory in found:
            try:
                attempts += Run.open_(directory).attempts()
            except RungError as error:
                print(f"{directory}: left out: {error}", file=sys.stderr)
    print(table(attempts))
    return 0 if attempts else 3


def table(attempts: Iterable[Attempt]) -> str:
    """Rungs by how often they were decided, and all of them together."""
    by_rung: dict[str, list[tuple[float, bool]]] = {}
    for attempt in attempts:
        off = prediction_error(attempt)
        if off is not None:
            by_rung.setdefault(attempt.rung, []).append((off, attempt.forecast == "inside"))
    rows = [_row(name, found) for name, found in sorted(by_rung.items(), key=lambda item: (-len(item[1]), item[0]))]
    if rows:
        rows.append(_row("**all**", [one for found in by_rung.values() for one in found]))
    return "\n".join(["| rung | n | median error, points | inside the range |", "|---|---|---|---|", *rows])


def _row(name: str, found: Sequence[tuple[float, bool]]) -> str:
    return f"| {name} | {len(found)} | {statistics.median(off for off, _ in found):.1f} | {sum(inside for _, inside in found)} |"


if __name__ == "__main__":
    sys.exit(main())
