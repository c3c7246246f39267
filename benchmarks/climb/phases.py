"""Where the seconds of a climb go: its worker processes by phase, of one version of Rung or of several, one after the other.

    python benchmarks/climb/phases.py model.py:make --rungs compile                      # this checkout
    python benchmarks/climb/phases.py --source ../before/src --source src model.py:make  # two checkouts, each with cold caches

A worker is known by its log file, which is open as its standard error. A phase lasts while at least one of its workers lives, so
phases that run side by side overlap. `recipe` is when recipe.toml was there first. Linux only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from time_to_answer import cold

TICK = 0.1
# By the name of a worker's log, the first that matches.
PHASES = {
    "survey": r"^(survey|resume)",
    "the untouched workload": r"^baseline",
    "verification": r"-(verify|precompile)-",
    "plain modes of torch.compile": r"^01-plain",
    "restarts of rungs": r"^\d\d-",
    "confirmation, other shapes": r"^(final|shape)",
    "started ahead, not used": r"",
}


@dataclass
class Seen:
    """Moments since the start of the climb at which a worker of one phase was seen, by process; seconds."""

    lives: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """In which at least one of them lived."""
        total, until = 0.0, 0.0
        for start, end in sorted(self.lives.values()):
            total += max(0.0, end - max(start, until))
            until = max(until, end)
        return total

    @property
    def process_seconds(self) -> float:
        return sum(end - start for start, end in self.lives.values())


@dataclass
class Climbed:
    phases: dict[str, Seen]
    whole: float = 0.0
    recipe: float | None = None
    status: str = ""


def watched(source: Path, arguments: list[str]) -> Climbed:
    """One climb by the package in `source`, in a folder of its own."""
    climbed = Climbed({phase: Seen() for phase in PHASES})
    workers: dict[int, tuple[str, float, float]] = {}
    with cold() as env, tempfile.TemporaryDirectory(prefix="phases-") as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "rung", "climb", *arguments, "--out", str(out)]
        began = time.monotonic()
        path = os.pathsep.join([str(source.resolve()), *filter(None, [env.get("PYTHONPATH")])])
        climb = psutil.Popen(
            command, env={**env, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while climb.poll() is None:
            now = time.monotonic() - began
            for pid, name in logs(climb):
                workers[pid] = (name, workers.get(pid, (name, now, now))[1], now)
            if climbed.recipe is None and (out / "recipe.toml").exists():
                climbed.recipe = now
            time.sleep(TICK)
        climbed.whole = time.monotonic() - began
        recipe = out / "recipe.toml"
        found = re.search(r'^status = "(\w+)"', recipe.read_text(), re.M) if recipe.exists() else None
        climbed.status = found[1] if found else "no status" if recipe.exists() else "none"
    for pid, (name, first, last) in workers.items():
        phase = next(phase for phase, pattern in PHASES.items() if re.search(pattern, name))
        climbed.phases[phase].lives[pid] = (first, last)
    return climbed


def logs(climb: psutil.Process) -> Iterator[tuple[int, str]]:
    """The workers of a climb that live now: their process, and the name of their log."""
    for child in climb.children():
        try:
            path = Path(os.readlink(f"/proc/{child.pid}/fd/2"))
        except OSError:
            continue
        if path.parent.name == "workers":
            yield child.pid, path.stem


def table(found: dict[str, Climbed]) -> str:
    lines = [
        f"| | {' | '.join(f'{name}: seconds (processes)' for name in found)} |",
        "|---|" + "---|" * len(found),
    ]
    for phase in PHASES:
        seen = [climbed.phases[phase] for climbed in found.values()]
        if any(s.lives for s in seen):
            lines.append(f"| {phase} | {' | '.join(f'{s.seconds:.0f} ({len(s.lives)})' for s in seen)} |")
    processes = [sum(len(s.lives) for s in climbed.phases.values()) for climbed in found.values()]
    whole = [f"{c.whole:.0f} ({n})" for c, n in zip(found.values(), processes, strict=True)]
    lines.append(f"| **the whole climb** | {' | '.join(whole)} |")
    recipes = ["never" if c.recipe is None else f"{c.recipe:.0f}" for c in found.values()]
    lines.append(f"| recipe.toml first seen after | {' | '.join(recipes)} |")
    lines.append(f"| its status at the end | {' | '.join(c.status for c in found.values())} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--source", type=Path, action="append", help="a folder that holds the package; may be given again"
    )
    parser.add_argument("target")
    options, more = parser.parse_known_args()
    sources = options.source or [Path(__file__).parents[2] / "src"]
    found = {str(source): watched(source, [options.target, *more]) for source in sources}
    print(table(found))


if __name__ == "__main__":
    main()
