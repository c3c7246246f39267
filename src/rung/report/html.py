"""A climb as one page: a file that asks for nothing, to keep or to show to others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rung.records.climb import Figure
from rung.report import charts, units, words
from rung.report.embedded import page_of
from rung.report.forest_chart import Effect, effect, forest, ratios

if TYPE_CHECKING:
    from rung.report.climb_traces import ClimbTraces

SCRIPTS = ("page", "tables", "export")
TIMELINE_SCRIPTS = ("canvas", "timeline")


def render(data: dict[str, Any], traces: ClimbTraces | None = None) -> str:
    """The page as text. All that comes from the data is escaped: by jinja2, and in pictures by `svg`. traces: of the run, where they
    are to be drawn."""
    from markupsafe import Markup

    drawn: dict[str, Any] = {}
    if traces is not None:
        from rung.report.climb_traces import drawn_of  # it loads polars

        drawn = drawn_of(traces)
    result, baseline = units.section(data, "result"), units.section(data, "baseline")
    tried, left = words.planned(data)
    bars = [("Before", words.as_measured(baseline.get("breakdown"), words.before(data).get("value")))]
    if words.kept(data):
        after = units.section(result, "times", "best").get("value")
        bars.append(("After", words.as_measured(result.get("breakdown"), after)))
    folded = words.folded(words.attempts(data))
    shown = [attempt for attempt in folded if attempt.get("log")]
    strips = [charts.strip(attempt.get("restarts")) for attempt in shown]
    return page_of(
        "climb.html",
        SCRIPTS + (TIMELINE_SCRIPTS if traces and traces.steps else ()),
        **drawn,
        words=words,
        data=data,
        manifest=units.section(data, "manifest"),
        baseline=baseline,
        result=result,
        attempts=[(attempt, Markup(strip), scale) for attempt, (strip, scale) in zip(shown, strips, strict=True)],
        forest=Markup(forest(_effects(data), "The ratio of each comparison, with its interval and its restarts")),
        untried=[attempt for attempt in folded if not attempt.get("log")],
        tried=tried,
        left=words.folded(left),
        facts=_facts(data),
        ladder=Markup(charts.ladder(data)),
        bars=Markup(charts.time_bars(bars)),
        legend=_legend([breakdown for _, breakdown in bars]),
        environment=_flat(units.section(data, "manifest", "environment")),
    )


def _effects(data: dict[str, Any]) -> list[Effect]:
    """Each attempt against the best before it, and the answer in fresh restarts."""
    tries: dict[str, int] = {}
    found = []
    for attempt in words.attempts(data):
        name = words.name(attempt)
        tries[name] = tries.get(name, 0) + 1
        label = f"{name if tries[name] == 1 else f'{name} ({tries[name]})'}, {units.clean(attempt.get('verdict'))}"
        css = "kept" if attempt.get("verdict") == "kept" else "tried"
        restarts = ratios([units.section(r) for r in attempt.get("restarts") or []], "best", "candidate")
        found.append(effect(label, _figure(words.speedup(attempt)), restarts, css))
    result = units.section(data, "result")
    if result.get("status") == "confirmed":
        answers = [("the untouched model", "best", "speedup"), ("the best plain mode", "plain", "over_plain")]
        for name, side, key in answers:
            if units.span(result.get(key)):  # the plain mode itself has no interval: 1
                restarts = ratios([units.section(r) for r in result.get("restarts") or []], side, "candidate")
                found.append(effect(f"confirmed, over {name}", _figure(result[key]), restarts))
    return [row for row in found if row is not None]


def _figure(record: dict[str, Any]) -> Figure:
    return Figure(value=record.get("value"), low=record.get("low"), high=record.get("high"))  # type: ignore[arg-type]


def _facts(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts under the title; those that are not known are left out."""
    manifest, baseline = units.section(data, "manifest"), units.section(data, "baseline")
    result = units.section(data, "result")
    best = units.section(result, "times").get("best")
    facts = [
        ("Workload", words.workload(manifest)),
        ("Device", words.device(manifest)),
        ("Software", words.versions(manifest)),
        ("Numerics", units.clean(manifest.get("numerics"))),
        ("Step before", units.duration_interval(words.before(data)) if baseline else ""),
        ("Step after", units.duration_interval(best) if words.kept(data) else ""),
        ("Peak memory", words.memory(data) or units.data_size(units.peak(baseline.get("memory")))),
        ("Bottleneck before", words.bottleneck(baseline.get("breakdown"))),
        ("Bottleneck after", words.bottleneck(result.get("breakdown")) if words.kept(data) else ""),
        ("Least time for its arithmetic", words.floor(baseline)),
        ("Climb took", units.seconds(result.get("seconds"))),
        ("Started", units.clean(manifest.get("created")).replace("T", " ").replace("+00:00", " UTC")),
    ]
    return [(name, _unbroken(value)) for name, value in facts if value and value != units.NONE]


def _unbroken(text: str) -> str:
    """The text with no line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|[nµm]?s|[KMGT]iB|B|[kMGTP])(?!\w))", "\u00a0", text)


def _legend(breakdowns: list[Any]) -> list[tuple[str, str, list[str]]]:
    """(class of the colour, title, time in each bar) of every part that takes time in one of them."""
    columns = [{key: (title, value) for key, title, value in words.parts(b)} for b in breakdowns]
    keys = [key for key in words.PARTS if any(key in column for column in columns)]
    keys += dict.fromkeys(key for column in columns for key in column if key not in words.PARTS)
    rows = []
    for key in keys:
        title = next(column[key][0] for column in columns if key in column)
        times = [units.duration(column[key][1]) if key in column else units.NONE for column in columns]
        rows.append((key if key in words.PARTS else "other", title, times))
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
