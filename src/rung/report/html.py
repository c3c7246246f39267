"""A climb as one page: a file that asks for nothing, to keep or to show to others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rung.records.analyze import Breakdown
from rung.records.climb import ClimbRun
from rung.records.record import plain
from rung.report import attempt_words, breakdowns, charts, commands, units, words
from rung.report.embedded import page_of
from rung.report.forest_chart import Effect, effect, forest, ratios

if TYPE_CHECKING:
    from rung.report.climb_traces import ClimbTraces

SCRIPTS = ("page", "tables", "export")
TIMELINE_SCRIPTS = ("canvas", "timeline")


def render(run: ClimbRun, traces: ClimbTraces | None = None) -> str:
    """The page as text. All that comes from the run is escaped: by jinja2, and in pictures by `svg`. traces: of the run, where they
    are to be drawn."""
    from markupsafe import Markup

    drawn: dict[str, Any] = {}
    if traces is not None:
        from rung.report.climb_traces import drawn_of  # it loads polars

        drawn = drawn_of(traces)
    tried, left = words.planned(run)
    bars = _bars(run)
    folded = attempt_words.folded(run.attempts)
    shown = [attempt for attempt in folded if attempt.log]
    strips = [charts.strip(attempt.restarts) for attempt in shown]
    return page_of(
        "climb.html",
        SCRIPTS + (TIMELINE_SCRIPTS if traces and traces.steps else ()),
        **drawn,
        breakdowns=breakdowns,
        commands=commands,
        words=words,
        attempt_words=attempt_words,
        run=run,
        manifest=run.manifest,
        baseline=run.baseline,
        result=run.result,
        attempts=[(attempt, Markup(strip), scale) for attempt, (strip, scale) in zip(shown, strips, strict=True)],
        forest=Markup(forest(_effects(run), "The ratio of each comparison, with its interval and its restarts")),
        untried=[attempt for attempt in folded if not attempt.log],
        tried=tried,
        left=attempt_words.folded(left),
        facts=_facts(run),
        ladder=Markup(charts.ladder(run)),
        bars=Markup(charts.time_bars(bars)),
        legend=_legend([breakdown for _, breakdown in bars]),
        environment=_flat(plain(run.manifest.environment)),
    )


def _bars(run: ClimbRun) -> list[tuple[str, Breakdown | None]]:
    """Where the time of a step goes, before and, where something was kept and profiled, after."""
    breakdown = run.baseline.breakdown if run.baseline else None
    bars = [("Before", breakdowns.as_measured(breakdown, words.before(run)))]
    if words.kept(run) and run.result and run.result.breakdown:
        bars.append(("After", breakdowns.as_measured(run.result.breakdown, words.result_time(run, "best"))))
    return bars


def _effects(run: ClimbRun) -> list[Effect]:
    """Each attempt against the best before it, and the answer in fresh restarts."""
    tries: dict[str, int] = {}
    found = []
    for attempt in run.attempts:
        name = attempt_words.name(attempt)
        tries[name] = tries.get(name, 0) + 1
        label = f"{name if tries[name] == 1 else f'{name} ({tries[name]})'}, {units.clean(attempt.verdict)}"
        css = "kept" if attempt.verdict == "kept" else "tried"
        found.append(effect(label, attempt_words.speedup(attempt), ratios(attempt.restarts, "best", "candidate"), css))
    result = run.result
    if result and result.status == "confirmed":
        answers = [("the untouched model", "best", result.speedup), ("the best plain mode", "plain", result.over_plain)]
        for name, side, gain in answers:
            if units.span(gain):  # the plain mode itself has no interval: 1
                found.append(effect(f"confirmed, over {name}", gain, ratios(result.restarts, side, "candidate")))
    return [row for row in found if row is not None]


def _facts(run: ClimbRun) -> list[tuple[str, str]]:
    """The facts under the title; those that are not known are left out."""
    manifest, baseline, result = run.manifest, run.baseline, run.result
    kept = result if words.kept(run) else None
    facts = [
        ("Workload", words.workload(manifest)),
        ("Device", words.device(manifest)),
        ("Software", words.versions(manifest)),
        ("Numerics", units.clean(manifest.numerics)),
        ("Step before", units.duration_interval(words.before(run)) if baseline else ""),
        ("Step after", units.duration_interval(words.result_time(run, "best")) if kept else ""),
        ("Peak memory", words.memory(run) or units.data_size(units.peak(baseline.memory if baseline else None))),
        ("Bottleneck before", breakdowns.bottleneck(baseline.breakdown) if baseline else ""),
        ("Bottleneck after", breakdowns.bottleneck(kept.breakdown) if kept else ""),
        ("Roofline lower bound", words.floor(baseline)),
        ("Climb took", units.seconds(result.seconds) if result else ""),
        ("Started", units.clean(manifest.created).replace("T", " ").replace("+00:00", " UTC")),
    ]
    return [(name, _unbroken(value)) for name, value in facts if value and value != units.NONE]


def _unbroken(text: str) -> str:
    """The text with no line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|[nµm]?s|[KMGT]iB|B|[kMGTP])(?!\w))", "\u00a0", text)


def _legend(found: Sequence[Breakdown | None]) -> list[tuple[str, str, list[str]]]:
    """(class of the colour, title, time in each bar) of every part that takes time in one of them."""
    columns = [{key: (title, value) for key, title, value in breakdowns.parts(b)} for b in found]
    keys = [key for key in breakdowns.PARTS if any(key in column for column in columns)]
    keys += dict.fromkeys(key for column in columns for key in column if key not in breakdowns.PARTS)
    rows = []
    for key in keys:
        title = next(column[key][0] for column in columns if key in column)
        times = [units.duration(column[key][1]) if key in column else units.NONE for column in columns]
        rows.append((key if key in breakdowns.PARTS else "other", title, times))
    return rows


def _flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(name, value) of every entry; an entry of a nested record is named by its path."""
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            rows += _flat(value, f"{path} · ")
        elif value is not None and value != "":
            known = units.data_size(value) if path == "device · memory" else ""
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            rows.append((path, known if known and known != units.NONE else text))
    return rows
