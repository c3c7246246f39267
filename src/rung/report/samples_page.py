"""Measurements and comparisons as a page: what they say, the samples, and the evidence for each ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rung.records.bench import Bench
from rung.records.compare import Comparison, Ranking
from rung.report import units
from rung.report.bench import bench_rows, heading, impression
from rung.report.compare import ranking_rows, sides_of, verdict_lines, what_lines
from rung.report.embedded import page_of
from rung.report.forest_chart import Effect, forest, of_sides
from rung.report.over_ranks import rank_rows
from rung.report.samples_chart import axis_of, colour, drawable, histogram, over_time

if TYPE_CHECKING:
    from markupsafe import Markup

SCRIPTS = ("page", "export")


@dataclass(frozen=True)
class Section:
    """One measurement, or one comparison. rows: (name, its lines); table: a heading and rows; notes: sentences. key: (class of its
    colour, name) of each side, where there are several."""

    title: str
    lead: list[str]
    rows: list[tuple[str, list[str]]]
    notes: list[str]
    histogram: Markup
    over_time: Markup
    scale: str
    discarded: int = 0
    table: list[tuple[str, ...]] = field(default_factory=list)
    key: list[tuple[str, str]] = field(default_factory=list)
    forest: Markup | None = None


def bench_page(results: Sequence[Bench]) -> str:
    """One measurement, or those of a sweep below each other."""
    sections = []
    for result in results:
        point = " ".join(f"{k}={v}" for k, v in (result.point or {}).items())
        rows: list[tuple[str, list[str]]] = []
        for name, said in bench_rows(result):
            if name:
                rows.append((name, [said]))
            else:
                rows[-1][1].append(said)
        lead = [heading(result), *([] if result.measured else [impression(result)])]
        samples = {"": [*result.discarded, *result.samples]}
        title = f"{units.duration(result.time.value)} a step" + (f", {point}" if point else "")
        table = rank_rows(result.over_ranks) if result.over_ranks else None
        sections.append(
            _section(title, lead, rows, result.notes, samples, {"": result.time}, len(result.discarded), table)
        )
    return _page(f"measurement of {results[0].workload}", sections)


def compare_page(result: Comparison | Ranking) -> str:
    """The samples of all sides, one restart after the other, and the ratio of each restart."""
    restarts = result.restarts or []
    names = {name: name.upper() for name in (restarts[0] if restarts else ())}
    samples = {names[name]: [ns for restart in restarts for ns in restart[name]] for name in names}
    times = {name.upper(): estimate for name, estimate in (result.times or {}).items()}
    lead, *more = verdict_lines(result) or [""]
    sides = [(name.upper(), [said]) for name, said in sides_of(result).items()]
    return _page(
        "comparison",
        [
            _section(
                lead,
                more,
                [*sides, *((name, [said]) for name, said in what_lines(result))],
                result.warnings or [],
                samples,
                times,
                table=ranking_rows(result) if isinstance(result, Ranking) else [],
                effects=_effects(result, names),
            )
        ],
    )


def _effects(result: Comparison | Ranking, names: Mapping[str, str]) -> list[Effect]:
    """Of two sides B against A; of several each pair. Rounds within one process have no restarts to draw."""
    restarts = [] if result.unit == "round" else result.restarts or []
    if isinstance(result, Ranking):
        ranked = result.ranking.pairs if result.ranking else []
        pairs = [(p.a.lower(), p.b.lower(), p.speedup) for p in ranked]
    else:
        pairs = [("a", "b", result.comparison.speedup)] if result.comparison else []
    return of_sides({"a": "A", "b": "B", **names}, restarts, pairs)


def _section(
    title: str,
    lead: list[str],
    rows: list[tuple[str, list[str]]],
    notes: Sequence[str],
    samples: Mapping[str, Sequence[float]],
    estimates: Mapping[str, units.Estimate],
    discarded: int = 0,
    table: list[tuple[str, ...]] | None = None,
    effects: Sequence[Effect] = (),
) -> Section:
    from markupsafe import Markup

    sides = drawable(samples)
    axis = axis_of(sides, discarded) if sides else None
    return Section(
        title,
        lead,
        rows,
        list(notes),
        Markup(histogram(sides, estimates, axis, discarded) if axis else ""),
        Markup(over_time(sides, estimates, axis, discarded) if axis else ""),
        axis.note() if axis else "",
        discarded,
        table or [],
        [(colour(place), name) for place, name in enumerate(sides) if name],
        Markup(forest(effects, "The ratio of each comparison, with its interval and its restarts")),
    )


def _page(what: str, sections: Sequence[Section]) -> str:
    return page_of("samples.html", SCRIPTS, what=what, sections=sections)
