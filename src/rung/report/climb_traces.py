"""The traces that a climb recorded: one step before and after, the rooflines, and where the files are."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from rung.analysis.pictures import Step, one_step, side_by_side
from rung.errors import RungError
from rung.program import program
from rung.records.climb import Attempt, ClimbRun
from rung.report import attempt_words, units, words
from rung.report.embedded import embedded_json
from rung.report.operators_chart import before_and_after, operator_roofline
from rung.report.trace_charts import drawn_together, host_legend, timeline
from rung.report.trace_record import record
from rung.trace import read
from rung.trace.table import CURVES

_ENDING = ".json.gz"
_BEFORE = "baseline"


@dataclass(frozen=True)
class File:
    """A recorded trace. what: of which attempt; path: as a shell takes it; link: from where the page lies, as a URL takes it."""

    what: str
    path: str
    link: str


@dataclass(frozen=True)
class ClimbTraces:
    """before, after: (what was recorded, its step), None where there is none. notes: what could not be read, in sentences. commands: how to see
    more of them."""

    before: tuple[str, Step] | None
    after: tuple[str, Step] | None
    files: list[File]
    notes: list[str]
    commands: list[str]

    @property
    def steps(self) -> list[tuple[str, Step]]:
        return [side for side in (self.before, self.after) if side is not None]


def traces_of(directory: Path, run: ClimbRun, page: Path) -> ClimbTraces:
    """Of a run directory. page: where the page will lie."""
    paths = sorted(
        (directory / "traces").glob(f"*{_ENDING}"), key=lambda path: (not path.name.startswith(_BEFORE), path)
    )
    found = {path.name.removesuffix(_ENDING): path for path in paths}
    names = {_BEFORE: "the untouched model", **_attempts(run)}
    folder = page.resolve().parent
    files = [
        File(names.get(stem, stem), str(path), quote(os.path.relpath(path.resolve(), folder)))
        for stem, path in found.items()
    ]
    after = _after(run, set(found))
    notes: list[str] = []
    steps = {stem: _step(found[stem], notes) for stem in (_BEFORE, after) if stem in found}
    before_step, after_step = steps.get(_BEFORE), steps.get(after)
    return ClimbTraces(
        before=("Before", before_step) if before_step else None,
        after=(f"After ({names[after]})", after_step) if after_step else None,
        files=files,
        notes=notes,
        commands=_commands([found[stem] for stem in steps]),
    )


def _commands(paths: list[Path]) -> list[str]:
    """For the last of these traces, and for what changed from the first to it."""
    quoted = [shlex.quote(units.clean(path)) for path in paths]
    diff = [f"{program()} diff {' '.join(quoted)} --html diff.html"] if len(quoted) == 2 else []
    return [*(f"{program()} analyze {path} --html trace.html" for path in quoted[-1:]), *diff]


def _attempts(run: ClimbRun) -> dict[str, str]:
    """What the trace of each attempt is of, by its name without the ending."""
    return {_stem(attempt): attempt_words.name(attempt) for attempt in run.attempts}


def _stem(attempt: Attempt) -> str:
    return f"{attempt.number:02d}-{attempt.rung}"


def _after(run: ClimbRun, recorded: set[str]) -> str:
    """The trace of the answer: of the attempt that made its stack, or else the last that was kept and recorded; "" where there is none."""
    kept = [a for a in run.attempts if a.verdict == "kept" and _stem(a) in recorded]
    if not words.kept(run) or not kept:
        return ""
    whole = [a for a in kept if sorted(a.stack or ()) == sorted(words.kept(run))]
    return _stem((whole or kept)[-1])


def _step(path: Path, notes: list[str]) -> Step | None:
    try:
        return one_step(read(path, cache=False))
    except RungError as error:
        notes.append(f"The trace could not be drawn: {units.clean(error)}")
        return None


def drawn_of(traces: ClimbTraces) -> dict[str, Any]:
    """What the page shows of the climb's own traces."""
    from markupsafe import Markup

    drawn: dict[str, Any] = {"traces": traces}
    if traces.steps:
        titles = [title for title, _ in traces.steps]
        lanes = side_by_side([step.lanes for _, step in traces.steps])
        drawn |= {
            "timeline": Markup(timeline(lanes, titles)),
            "host_legend": host_legend(lanes),
            "together": drawn_together(lanes),
            "record": embedded_json(record(lanes, pl.DataFrame(schema=CURVES), [], {}, titles)),
        }
        if len(traces.steps) == 2:
            (before, one), (after, other) = traces.steps
            rooflines = before_and_after(one.roofs, other.roofs, (before, after))
        else:
            rooflines = [operator_roofline(step.roofs) for _, step in traces.steps]
        drawn["rooflines"] = [(Markup(chart.picture), chart.note) for chart in rooflines if chart.picture]
    return drawn
