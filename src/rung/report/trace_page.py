"""A trace as one page: a file that asks for nothing, to keep or to show to others. Its scripts make pictures larger; without them, the
tables and pictures stay."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from rung.analysis.analyses import ANALYSES
from rung.analysis.pictures import Pictures, Roofs
from rung.records.analyze import Breakdown, Overview
from rung.records.record import plain
from rung.report import breakdowns, charts, units
from rung.report.analyze import step_of
from rung.report.embedded import embedded_json, page_of
from rung.report.findings import gain
from rung.report.operators_chart import operator_roofline
from rung.report.table_html import html_table
from rung.report.trace_charts import curve_names, drawn_together, host_legend, icicle_svg, memory_curves, timeline
from rung.report.trace_record import record

SCRIPTS = ("page", "tables", "export", "canvas", "timeline", "icicle")
TREES = {"module": "By module", "operator": "By operator", "call_site": "By line of Python"}
# Tables that a picture is drawn from stand below it.
BELOW = {
    "where": ("kernels", "ops"),
    "idle": ("idle", "gaps"),
    "memory": ("memory", "memory_peak"),
    "roofline": ("roofline",),
}
_MOST_BARS = 16  # ranks


def page(found: Overview, drawn: Pictures) -> str:
    """The page as text. found: the overview with its findings and headlines, as the terminal shows it."""
    from markupsafe import Markup

    frames = drawn.tables
    tables = {name: html_table(name, ANALYSES[name].question, frame) for name, frame in frames.items() if frame.height}
    data = record(
        drawn.lanes, drawn.curves, [(TREES[tree.by], tree) for tree in drawn.trees], _late(frames.get("stragglers"))
    )
    whole = step_of(found)
    chart = operator_roofline(Roofs(frames["roofline"], drawn.peaks))
    placed = {name for names in BELOW.values() for name in names} | {"findings"}
    return page_of(
        "trace.html",
        SCRIPTS,
        found=found,
        title=_headline(found),
        facts=_facts(found, drawn),
        findings=[
            plain(row) | {"gain": gain(row), "percent": units.percent(round(row.share, 2))} for row in found.findings
        ],
        on_gpu=whole is not None and whole.clock == "gpu",
        bars=Markup(charts.stacked(_bars(found))),
        of_bars=whole.notes if whole and found.ranks == 1 else None,
        operators=_operators(whole) if found.ranks == 1 else [],
        more_ranks=max(0, found.ranks - _MOST_BARS),
        legend=_legend(found),
        timeline=Markup(timeline(drawn.lanes)),
        host_legend=host_legend(drawn.lanes),
        together=drawn_together(drawn.lanes),
        ranks=found.ranks,
        trees=[(TREES[tree.by], Markup(icicle_svg(tree, drawn.steps))) for tree in drawn.trees],
        roofline=Markup(chart.picture),
        without=chart.note,
        memory=[(title, names, Markup(picture)) for title, names, picture in _memory(drawn)],
        other_numbers=_other_numbers(found, drawn),
        causes=_causes(frames["idle"], max(1, _gpus(found))),
        gpus=_gpus(found),
        below={place: [tables[name] for name in names if name in tables] for place, names in BELOW.items()},
        rest=[table for name, table in tables.items() if name not in placed],
        record=embedded_json(data),
        steps=drawn.steps,
    )


def _headline(found: Overview) -> str:
    record = step_of(found)
    text = breakdowns.bottleneck(record, "step" if found.steps > 1 else f"time {_window(record)}")
    return (
        f"{_title(text)}{' (CPU time)' if record and record.clock == 'cpu' else ''}"
        if text
        else "Nothing to break down"
    )


def _title(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _window(record: Breakdown | None) -> str:
    """What the breakdown of an unmarked trace divides: the GPU may have begun long after the recording did."""
    return f"from the first to the last {'operator' if record and record.clock == 'cpu' else 'GPU event'}"


def _facts(found: Overview, drawn: Pictures) -> list[tuple[str, str]]:
    span = drawn.lanes.span_ns
    mean = step_of(found)
    step = units.duration(mean.step_ns) if mean else ""
    facts = [
        ("GPU", f"{', '.join(map(units.clean, found.gpus))}{f' ({_gpus(found)} GPUs)' if _gpus(found) > 1 else ''}"),
        ("Recorded with", units.clean(found.format)),
        ("Whole recording", units.duration(span) if span else ""),
        ("Steps", str(found.steps) if found.steps > 1 else ""),
        ("A step" if found.steps > 1 else _title(_window(mean)), step),
        ("Ranks", str(found.ranks) if found.ranks > 1 else ""),
        ("Events", units.count(found.events)),
        (
            "GPU kernels a step" if found.steps > 1 else "GPU kernels",
            units.count(mean.kernels) if mean and mean.clock == "gpu" else "",
        ),
        ("Roofs by", units.clean(drawn.peaks.name) if drawn.peaks else ""),
    ]
    return [(name, value) for name, value in facts if value and value != units.NONE]


def _gpus(found: Overview) -> int:
    return sum(len(part.timeline) for part in found.parts)


def _bars(found: Overview) -> list[tuple[str, list[tuple[str, str, float]]]]:
    """A bar a rank: (its label, the parts of its step)."""
    parts = [(part.rank, record) for part in found.parts if (record := part.breakdown)][:_MOST_BARS]
    what = "A step" if found.steps > 1 else _title(_window(parts[0][1] if parts else None))
    return [
        (f"{what if len(parts) == 1 else f'Rank {rank}'}: {units.duration(record.step_ns)}", breakdowns.parts(record))
        for rank, record in parts
    ]


def _operators(record: Breakdown | None) -> list[tuple[str, str, str, str, str]]:
    """(name, kind, time, share, calls) of the operators that take the most time, of a recording of the host alone: the tables are of GPU events."""
    if record is None or record.clock != "cpu":
        return []
    whole = record.step_ns or 0
    return [
        (
            units.clean(name),
            breakdowns.kind(category, record.clock),
            units.duration(ns),
            units.percent(ns / whole) if whole else units.NONE,
            units.count(calls),
        )
        for name, category, ns, calls in record.top or ()
    ]


def _legend(found: Overview) -> list[tuple[str, str]]:
    """(class of the colour, title) of the parts that some bar has, in the order of the bars."""
    known = {key: title for _, parts in _bars(found) for key, title, _ in parts}
    return [(key, known[key]) for key in breakdowns.PARTS if key in known]


def _late(stragglers: pl.DataFrame | None) -> dict[int, str]:
    """Of each rank on which others waited: in how many steps, and how much at most."""
    if stragglers is None or stragglers.is_empty():
        return {}
    sums = stragglers.group_by("rank").agg(steps=pl.col("step").n_unique(), late=pl.col("late_ns").max()).sort("rank")
    return {
        rank: f"others waited for it in {units.count(steps)} step{'s' if steps > 1 else ''}, up to {units.duration(late)}"
        for rank, steps, late in sums.iter_rows()
    }


def _causes(idle: pl.DataFrame, gpus: int) -> list[tuple[str, str, str, float]]:
    """(cause, time, gaps, percent of all idle time) of each, the longest first. Both are of a step, and means of the GPUs."""
    if idle.is_empty():
        return []
    sums = (
        idle.group_by("cause")
        .agg(pl.col("time_ns", "count", "share").sum())
        .sort("time_ns", "cause", descending=[True, False])
    )
    return [
        (cause, units.duration(time_ns / gpus), units.count(count / gpus), 100 * share)
        for cause, time_ns, count, share in sums.iter_rows()
    ]


def _other_numbers(found: Overview, drawn: Pictures) -> bool:
    """Whether tensors lie on a GPU without kernels: a process that may see some of the GPUs counts those from 0, a driver all."""
    working = {gpu.device for part in found.parts for gpu in part.timeline}
    tensors = drawn.curves.filter(pl.col("name") == "allocated by tensors")
    return bool(working) and not working.issuperset(tensors["device"])


def _memory(drawn: Pictures) -> Iterable[tuple[str, list[str], str]]:
    """(the device, its curves, the picture) of each device that has any."""
    begin = drawn.lanes.origin_ns
    span = (begin, begin + drawn.lanes.span_ns)
    for (rank, device), part in drawn.curves.group_by("rank", "device", maintain_order=True):
        picture = memory_curves(part, span)
        if picture:
            yield f"GPU {device}" + (f", rank {rank}" if rank is not None else ""), curve_names(part), picture
