"""A climb while it runs: plain lines for each of its events, and its page."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rung.errors import RungError
from rung.records.climb import Attempt, ClimbRun, Mode, Result
from rung.records.record import record_of
from rung.report.climb_traces import traces_of
from rung.report.html import render
from rung.report.lines import baseline_lines, graph_lines
from rung.report.terminal import answer_line, attempt_line, left_lines, mode_line, prediction_line
from rung.runs import Run

PAGE = "report.html"
NEW_ANSWER = ("answer", "taken back")  # events after which the run directory has another result


def progress_lines(event: str, data: dict[str, Any]) -> list[str]:
    """Of an event of `rung.ladder.climb.Climb`, in the order in which they are to be said."""
    if event == "survey":
        return [
            f"looking at {data['target']}: does it run, does it compute the same twice, what does its graph hold ..."
        ]
    if event == "workload":
        run = record_of(ClimbRun, data)
        w, e, numerics = run.manifest.workload, run.manifest.environment, run.manifest.numerics
        return [
            f"{w.name}, {w.mode}, on {e.device.name} (torch {e.torch or 'unknown'}); numerics: {numerics}",
            f"run directory: {run.directory}",
        ]
    if event == "surveyed":
        return graph_lines(record_of(ClimbRun, data).manifest.facts)
    if event == "baseline":
        return ["measuring the baseline ..."]
    if event == "measured":
        baseline = record_of(ClimbRun, data).baseline
        return baseline_lines(baseline) if baseline else []
    if event in ("try", "plan"):
        return [prediction_line(record_of(Attempt, data))]
    if event == "inapplicable":
        return left_lines(record_of(list[Attempt], data["attempts"]))
    if event == "verify":
        return [f"  {data['rung']}: faster; verifying that it computes the same ..."]
    if event == "verdict":
        return [attempt_line(record_of(Attempt, data))]
    if event == "mode":
        return [mode_line(record_of(Mode, data))]
    if event == "answer":
        return [answer_line(record_of(Result, data))]
    if event == "taken back":
        return [f"  taken back: {' + '.join(data['kept'])}: {data['why']}."]
    if event == "final":
        plain = " and the best plain mode" if data["plain"] else ""
        return [f"confirming {' + '.join(data['kept'])} against the untouched model{plain}, in fresh processes ..."]
    if event == "warning":
        return [f"  note: {data['text']}"]
    return []


def keep_page(run: Run) -> None:
    """Writes the page of what there is so far: whatever ends a climb, it is of the last answer. The climb goes on without it."""
    with contextlib.suppress(RungError):
        run.write_text(PAGE, render(run.record()))


def write_page(run: Run, record: ClimbRun) -> Path:
    """Writes the page of a climb that has ended, with what its traces show; returns where."""
    page = run.directory / PAGE
    run.write_text(PAGE, render(record, traces_of(run.directory, record, page)))
    return page
