"""What one screen says of a trace: what it is and what is not in its figures, how busy its GPUs were, where the time went, rank by rank."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from rung.analysis.across import across
from rung.analysis.breakdown import breakdown
from rung.analysis.captures import joined
from rung.analysis.gpu_events import gpu_events
from rung.analysis.roofline import peaks_of_trace
from rung.analysis.steps import step_at, step_spans
from rung.analysis.timeline import timeline
from rung.hardware.peaks import peaks_of_properties
from rung.records.analyze import Breakdown, Busy, Counted, OfRank, Overview
from rung.records.record import record_of
from rung.trace.ranks import named_ranks, of_rank
from rung.trace.table import GPU_KINDS, Trace

MOST_RANKS = 64
SERIALIZED = "hardware counters were read, so kernels ran one at a time; times, gaps and shares differ from those of a normal run."


def overview(trace: Trace, *, steps: int = 1) -> Overview:
    """The trace's facts, and for each rank its timeline and breakdown, without findings and headlines. steps: how many were recorded."""
    ranks = named_ranks(trace.events)
    peaks = peaks_of_trace(trace)
    found = parts(trace, steps=steps)
    return Overview(
        source=trace.source,
        steps=steps,
        format=trace.format,
        events=trace.events.height,
        counters=trace.counters.height,
        ranks=len(ranks),
        unread=dict(trace.unread),
        completeness=record_of(list[Counted], completeness(trace).to_dicts()),
        notes=notes(trace),
        gpus=gpu_names(trace),
        peaks=peaks.origin if peaks else None,
        parts=found,
        across=across(found) if len(ranks) > 1 else None,
    )


def parts(trace: Trace, *, steps: int) -> list[OfRank]:
    """The timeline and the breakdown of each rank, of the first MOST_RANKS."""
    ranks = named_ranks(trace.events)
    return [_part(trace, rank, len(ranks) == 1, steps) for rank in ranks[:MOST_RANKS]]


def notes(trace: Trace) -> list[str]:
    """What was wrong with the file, or with which of several, and with what was recorded."""
    wrong = [str(trace.meta[key]) for key in ("cut", "replaced", "cache") if trace.meta.get(key)]
    files = trace.meta.get("files", [])
    wrong += [SERIALIZED] if trace.serialized else []
    wrong += joined(trace).notes
    return wrong + [f"{file['file']}: {file[key]}" for file in files for key in ("cut", "replaced") if file.get(key)]


def _part(trace: Trace, rank: int | None, alone: bool, steps: int) -> OfRank:
    part = trace if alone else replace(trace, events=trace.events.filter(of_rank(rank)))
    kind = pl.col("kind")
    launches, known = part.events.select(
        launches=(kind == "runtime").any(), known=kind.is_in(["kernel", "memcpy", "memset", "cpu_op"]).any()
    ).row(0)
    return OfRank(
        rank=rank,
        launches=launches,  # else nothing can be linked, and that says nothing
        timeline=record_of(list[Busy], timeline(part).filter(pl.col("step").is_null()).to_dicts()),
        breakdown=record_of(Breakdown, breakdown(part, steps=steps)) if known else None,
    )


def gpu_names(trace: Trace) -> list[str]:
    """The different GPUs that the trace's files describe, as the driver names them; where that is nothing or generic, as
    ROCm's "AMD Radeon Graphics" is, with the row of the peaks that fits their architecture, units and memory best.
    """
    devices = trace.devices or [device for file in trace.meta.get("files", []) for device in file.get("devices", [])]
    names: dict[str, None] = {}
    for device in devices:
        name = str(device.get("name") or "")
        peaks = None if re.search(r"\d", name) else peaks_of_properties(device)
        said = f"{name or 'a GPU without a name'} (taken for {peaks.name})" if peaks else name
        if said:
            names.setdefault(said)
    return list(names)


MISSING: dict[str, pl.DataType] = {
    "what": pl.String(),
    "in_table": pl.Boolean(),
    "events": pl.Int64(),
    "time_ns": pl.Int64(),
}
UNLINKED = "GPU event launched before the recording"
NO_LAUNCHES = "GPU event without a launch, as none were recorded"
OUTSIDE = "GPU event launched outside of the recorded steps"
NO_DEVICE = "GPU event without a device"
INSTANT = "GPU event of no duration"
INSTANT_CALL = "host event of no duration"


def completeness(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a kind of event that is not in the figures, or is in them but deserves a look. These were launched before the recording
    began, or outside of its marked steps, or took no time by the file's clock. A GPU event without a device, in a file where others have one,
    is in no figure of a GPU.

    One event may be in several rows. The figures are of the whole recording.

    what: the kind of event.
    in_table: whether the events are in the figures.
    events: how many.
    time_ns: their durations together; null if they have none that could be read.
    """
    rows = [(why, False, number, trace.unread_ns.get(why)) for why, number in sorted(trace.unread.items())]
    on_gpu = pl.col("kind").is_in(GPU_KINDS)
    no_device = trace.events.lazy().filter(on_gpu, pl.col("device").is_null()).select("dur").collect()
    rows.append((NO_DEVICE, False, *_sums(no_device)))
    gpu = gpu_events(trace)
    unlinked = gpu.filter(~pl.col("linked"))
    rows.append((UNLINKED if unlinked.height < gpu.height else NO_LAUNCHES, True, *_sums(unlinked)))
    rows.append((OUTSIDE, True, *_sums(_outside(trace, gpu))))
    instant = trace.events.lazy().filter(pl.col("dur") == 0).select("kind", "dur", "device").collect()
    at_device = pl.col("device").is_not_null()
    rows.append((INSTANT, True, *_sums(instant.filter(at_device))))
    rows.append((INSTANT_CALL, True, *_sums(instant.filter(~at_device, ~on_gpu))))
    return pl.DataFrame([row for row in rows if row[2]], schema=MISSING, orient="row")


def _outside(trace: Trace, gpu: pl.DataFrame) -> pl.DataFrame:
    """The linked events that no marked step launched; none where no step is marked."""
    linked = gpu.filter("linked")
    if step_spans(trace).is_empty() or linked.is_empty():
        return linked.clear()
    return linked.filter(step_at(trace, linked.select("rank", pid="process", at="launched")).is_null())


def _sums(events: pl.DataFrame) -> tuple[int, int]:
    return events.height, int(events["dur"].sum())
