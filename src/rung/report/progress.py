"""A climb while it runs: plain lines for each of its events, what it has and does now, and its page."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rung.errors import RungError
from rung.ladder.climb.bundles import IN_WORDS
from rung.ladder.climb.bundles import NAME as BUNDLE
from rung.ladder.climb.modes import NAME, TITLES, mode_of, title
from rung.records.climb import Baseline, ClimbRun, TakenBack
from rung.records.progress import (
    Answered,
    Begins,
    Confirms,
    Event,
    Inapplicable,
    Judged,
    Measured,
    Now,
    OnAllShapes,
    Opened,
    Planned,
    Raced,
    Surveyed,
    TimesBaseline,
    Verifies,
    Warned,
)
from rung.records.workload import Facts
from rung.report import units
from rung.report.breakdowns import as_measured
from rung.report.climb_traces import traces_of
from rung.report.html import render
from rung.report.layout import hanging
from rung.report.terminal import answer_line, attempt_line, breakdown_lines, left_lines, mode_line, prediction_line
from rung.report.words import ranks, recompilations
from rung.runs import Run

PAGE = "report.html"
TASKS = {
    "survey": "looking at the graph",
    "final-plain": "preparing torch.compile",
    **dict.fromkeys(("baseline", "resume", "plain-untouched", "final-best"), "preparing the untouched model"),
}
CANDIDATES = {NAME: "torch.compile", BUNDLE: IN_WORDS, "final": "the recipe", "shapes": "other shapes"}
NEW_ANSWER = (Answered, OnAllShapes, TakenBack)  # events after which the run directory has another result


def progress_lines(event: Event, width: int | None = None) -> list[str]:
    """An event of a climb in words, in the order in which they are to be said. width: columns of the terminal, for which long lines are
    broken; in a file they stay whole."""
    lines = _lines(event)
    return lines if width is None else [part for line in lines for part in hanging(line, width)]


def _lines(event: Event) -> list[str]:
    match event:
        case Begins(target):
            return [f"checking {target}: that it runs and can be verified, and what its graph holds ..."]
        case Opened(directory, manifest):
            w, e = manifest.workload, manifest.environment
            on = f"{e.device.name} (torch {e.torch or 'unknown'}); numerics: {manifest.numerics}"
            of = ", ".join(filter(None, (w.mode, ranks(manifest))))
            return [f"{w.name}, {of}, on {on}", f"run directory: {directory}"]
        case TimesBaseline():
            return ["measuring the baseline ..."]
        case Measured(baseline):
            return baseline_lines(baseline)
        case Surveyed(facts):
            return [*graph_lines(facts), *gradient_lines(facts)]
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
            return [f"  withdrawn: {' + '.join(event.kept)}: {event.why}."]
        case OnAllShapes():
            return [
                "  recipe.toml: verified on all input shapes; until now, only the measured shape ran under the recipe"
            ]
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


def baseline_lines(baseline: Baseline) -> list[str]:
    """How long the untouched workload takes, and where the time goes."""
    lines = [
        f"baseline: {units.duration_interval(baseline.time)} per step; first run "
        f"{units.seconds(baseline.first_run_seconds)}; peak memory {units.data_size(units.peak(baseline.memory))}"
    ]
    if baseline.steady is False:
        lines.append("  note: the step time did not settle during warm-up: the machine or the workload drifts.")
    parts = as_measured(baseline.breakdown, baseline.time)
    return lines + [f"  {line}" for line in breakdown_lines(parts)]


def graph_lines(facts: Facts) -> list[str]:
    """Where Dynamo breaks the graph, and what it captures again for a second batch of one shape, in the user's source;
    nothing where it captures one graph, once."""
    breaks, again = facts.graph_breaks, recompilations(facts)
    lines = []
    if breaks:
        lines.append(f"  note: torch.compile breaks the graph in {len(breaks)} place{'s' if len(breaks) > 1 else ''}:")
        lines += [f"    {units.clean(text)}" for text in breaks]
    if again:
        lines.append("  note: torch.compile compiles again for a second batch of the same shape:")
        lines += [f"    {text}" for text in again]
    return lines


def gradient_lines(facts: Facts) -> list[str]:
    """Which trainable parameters the untouched workload never updates: more often a mistake than meant."""
    names = [units.clean(name) for name in facts.without_gradient]
    if not names:
        return []
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    many = "1 trainable parameter gets" if len(names) == 1 else f"{len(names)} trainable parameters get"
    return [f"  note: {many} no gradient: {shown}"]


def now_line(now: Now) -> str:
    """What a climb has and does at this moment, for a terminal's last line."""
    age = "just now" if now.age < 2 else f"{now.age:.0f} s ago" if now.age < 60 else f"{units.seconds(now.age)} ago"
    parts = [f"best so far {now.best} ({age})" if now.best else "no recipe yet"]
    background = dict.fromkeys(map(doing, now.background))
    following = dict.fromkeys(phrase for name in now.following if (phrase := doing(name)) not in background)
    for what, phrases in (("meanwhile", background), ("next", following)):
        if phrases:
            parts.append(f"{what}: {', '.join(phrases)}")
    return " · ".join(parts)


def doing(task: str) -> str:
    """A task of a climb, by the name of its log, as a reader knows it: "plain-verify-exact" is "verifying torch.compile"."""
    what, verifies, _ = task.partition("-verify-")
    if verifies:
        return f"verifying {_candidate(what)}"
    if task.endswith("-precompile-exact"):
        return f"compiling {_candidate(task.removesuffix('-precompile-exact'))} for its verification"
    return TASKS.get(task) or f"preparing {'the best so far' if task.endswith('-best') else _candidate(task)}"


def _candidate(name: str) -> str:
    """What a task times or verifies: a plain mode of torch.compile, or what a rung gives."""
    for end in ("-again", "-first", "-fewer"):
        name = name.removesuffix(end)
    mode = name.removeprefix(f"{NAME}-")
    if mode != name and mode_of(mode) in TITLES:
        return title(mode)
    return CANDIDATES.get(name) or units.clean(name)
