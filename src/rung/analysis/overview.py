"""What one screen says of a trace: what it is, how busy its GPUs were, where the time went, rank by rank."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rung.analysis.across import across
from rung.analysis.breakdown import breakdown
from rung.analysis.captures import joined
from rung.analysis.completeness import completeness
from rung.analysis.devices import gpu_names
from rung.analysis.roofline import peaks_of_trace
from rung.analysis.serialized import NOTE, serialized
from rung.analysis.timeline import timeline
from rung.records.analyze import Breakdown, Busy, Counted, OfRank, Overview
from rung.records.record import record_of
from rung.trace.ranks import named_ranks
from rung.trace.table import Trace

MOST_RANKS = 64


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
    wrong += [NOTE] if serialized(trace) else []
    wrong += joined(trace).notes
    return wrong + [f"{file['file']}: {file[key]}" for file in files for key in ("cut", "replaced") if file.get(key)]


def _part(trace: Trace, rank: int | None, alone: bool, steps: int) -> OfRank:
    of_rank = pl.col("rank").is_null() if rank is None else pl.col("rank") == rank
    part = trace if alone else replace(trace, events=trace.events.filter(of_rank))
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
