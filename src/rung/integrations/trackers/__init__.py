"""A climb for trackers of experiments: what is logged, and to which. Each library is imported by its own module alone."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rung import __version__
from rung.errors import InputError, RungError, first_line
from rung.records.climb import ClimbRun
from rung.report import attempt_words, units
from rung.report.climbs import climb_of

_LONGEST = 500  # characters of a parameter, which all three take
_HEADS = ("number", "rung", "verdict", "speedup", "low", "high", "why")


@dataclass(frozen=True)
class Series:
    """Values of one name in their order. by: what `points` counts first: (a whole number, the value)."""

    name: str
    by: str
    points: list[tuple[int, float]]


@dataclass(frozen=True)
class Tracked:
    """One climb. table: `heads` and a row an attempt; files: (path, its name in the tracker)."""

    name: str
    parameters: dict[str, str]
    metrics: dict[str, float]
    series: list[Series]
    heads: Sequence[str]
    table: list[tuple[str | float | None, ...]]
    files: list[tuple[Path, str]]

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.heads, *self.table])
        return out.getvalue()


def tracked(directory: Path, run: ClimbRun, page: Path) -> Tracked:
    """What of a run directory is logged. page: its report, as a file. Links in the directory are not followed: they may lead to any file."""
    climb, result = climb_of(run), run.result
    parameters = {
        "target": run.manifest.target,
        "workload": climb.model,
        "mode": climb.mode,
        "numerics": climb.numerics,
        "device": climb.device,
        "software": climb.software,
        "recipe": climb.status,
        "kept": ", ".join(climb.kept),
        "rung": __version__,
        **{f"option {name}": value for name, value in (run.manifest.options or {}).items()},
    }
    known = {
        "step_before_ms": climb.step_before and climb.step_before / 1e6,
        "step_after_ms": climb.step_after and climb.step_after / 1e6,
        "memory_before_bytes": climb.memory_before,
        "memory_after_bytes": climb.memory_after,
        "first_answer_seconds": climb.first_answer,
        "verified_seconds": climb.verified,
        "climb_seconds": climb.took,
    }
    for name, ratio in (("speedup", climb.speedup), ("over_plain", climb.over_plain)):
        if ratio:
            known |= {name: ratio.value, f"{name}_low": units.number(ratio.low), f"{name}_high": units.number(ratio.high)}  # fmt: skip
    answers = [(moment.seconds, units.number(moment.speedup)) for moment in (result.history if result else None) or []]
    tries = [(attempt.number, attempt_words.speedup(attempt)) for attempt in run.attempts]
    return Tracked(
        name=directory.resolve().name,
        parameters={
            units.one_line(n): units.one_line(v)[:_LONGEST] for n, v in parameters.items() if v not in ("", None)
        },
        metrics={name: value for name, value in known.items() if value is not None},
        series=[
            Series("answer_speedup", "seconds", [(round(at), value) for at, value in answers if value is not None]),
            Series("attempt_speedup", "attempt", [(number, ratio.value) for number, ratio in tries if ratio]),
        ],
        heads=_HEADS,
        table=[
            (
                attempt.number,
                attempt_words.name(attempt),
                units.clean(attempt.verdict),
                *((ratio.value, units.number(ratio.low), units.number(ratio.high)) if ratio else (None, None, None)),
                units.one_line(attempt.why),
            )
            for attempt, (_, ratio) in zip(run.attempts, tries, strict=True)
        ],
        files=[(page, "report.html"), *_files(directory)],
    )


def log(tracker: str, climb: Tracked) -> str:
    """Logs a climb to the tracker of a module beside this; says where it is now.

    Raises:
        UsageError: The library is not installed.
        InputError: It did not take the climb.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the libraries print is no part of the answer
            return str(importlib.import_module(f"rung.integrations.trackers.{tracker}").log(climb))
    except RungError:
        raise
    except Exception as error:
        raise InputError(f"{tracker} did not take {climb.name}: {type(error).__name__}: {first_line(error)}") from error


def _files(directory: Path) -> list[tuple[Path, str]]:
    folder = directory / "traces"
    found = [directory / "recipe.toml", *(sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ())]  # fmt: skip
    return [(path, str(path.relative_to(directory))) for path in found if path.is_file() and not path.is_symlink()]
