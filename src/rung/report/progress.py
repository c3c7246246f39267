"""A climb while it runs: plain lines for each of its events, and its page."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rung.errors import RungError
from rung.records.climb import ClimbRun, TakenBack
from rung.records.progress import (
    Answered,
    Begins,
    Confirms,
    Event,
    Inapplicable,
    Judged,
    Measured,
    Opened,
    Planned,
    Raced,
    Surveyed,
    TimesBaseline,
    Verifies,
    Warned,
)
from rung.report.climb_traces import traces_of
from rung.report.html import render
from rung.report.lines import baseline_lines, graph_lines
from rung.report.terminal import answer_line, attempt_line, left_lines, mode_line, prediction_line
from rung.runs import Run

PAGE = "report.html"
NEW_ANSWER = (Answered, TakenBack)  # events after which the run directory has another result


def progress_lines(event: Event) -> list[str]:
    """An event of a climb in words, in the order in which they are to be said."""
    match event:
        case Begins(target):
            return [f"looking at {target}: does it run, does it compute the same twice, what does its graph hold ..."]
        case Opened(directory, manifest):
            w, e = manifest.workload, manifest.environment
            on = f"{e.device.name} (torch {e.torch or 'unknown'}); numerics: {manifest.numerics}"
            return [f"{w.name}, {w.mode}, on {on}", f"run directory: {directory}"]
        case TimesBaseline():
            return ["measuring the baseline ..."]
        case Measured(baseline):
            return baseline_lines(baseline)
        case Surveyed(facts):
            return graph_lines(facts)
        case Planned(attempt):
            return [prediction_line(attempt)]
        case Inapplicable(attempts):
            return left_lines(attempts)
        case Raced(mode):
            return [mode_line(mode)]
        case Verifies(rung):
            return [f"  {rung}: faster; verifying that it computes the same ..."]
        case Judged(attempt):
            return [attempt_line(attempt)]
        case Answered():
            return [answer_line(event)]
        case TakenBack():
            return [f"  taken back: {' + '.join(event.kept)}: {event.why}."]
        case Confirms(kept, plain):
            also = " and the best plain mode" if plain else ""
            return [f"confirming {' + '.join(kept)} against the untouched model{also}, in fresh processes ..."]
        case Warned(text):
            return [f"  note: {text}"]


def keep_page(run: Run) -> None:
    """Writes the page of what there is so far: whatever ends a climb, it is of the last answer. The climb goes on without it."""
    with contextlib.suppress(RungError):
        run.write_text(PAGE, render(run.record()))


def write_page(run: Run, record: ClimbRun) -> Path:
    """Writes the page of a climb that has ended, with what its traces show; returns where."""
    page = run.directory / PAGE
    run.write_text(PAGE, render(record, traces_of(run.directory, record, page)))
    return page
