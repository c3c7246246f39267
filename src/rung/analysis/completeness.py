"""What is not in the figures, or stands in them apart: nothing that a trace holds goes unsaid."""

from __future__ import annotations

import polars as pl

from rung.analysis.gpu_events import gpu_events
from rung.analysis.steps import step_spans
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "what": pl.String(),
    "in_table": pl.Boolean(),
    "events": pl.Int64(),
    "time_ns": pl.Int64(),
}
UNLINKED = "GPU event launched before the recording"
NO_LAUNCHES = "GPU event without a launch, as none were recorded"
OUTSIDE = "GPU event launched outside of the recorded steps"
INSTANT = "GPU event of no duration"
INSTANT_CALL = "host event of no duration"


def completeness(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a kind of event that is not in the table (in_table false), or is in it and counted but deserves a look: what was
    launched before the recording began, outside of its marked steps, or took no time by the file's clock.

    events: how many, in the whole recording. time_ns: their durations together; null where they have none that could be
    read. One event may be in several rows. steps: not used.
    """
    rows = [(why, False, number, trace.unread_ns.get(why)) for why, number in sorted(trace.unread.items())]
    gpu = gpu_events(trace)
    unlinked = gpu.filter(~pl.col("linked"))
    rows.append((UNLINKED if unlinked.height < gpu.height else NO_LAUNCHES, True, *_sums(unlinked)))
    rows.append((OUTSIDE, True, *_sums(_outside(trace, gpu))))
    instant = trace.events.lazy().filter(pl.col("dur") == 0).select("kind", "dur", "device").collect()
    on_gpu = instant["device"].is_not_null()
    rows.append((INSTANT, True, *_sums(instant.filter(on_gpu))))
    rows.append((INSTANT_CALL, True, *_sums(instant.filter(~on_gpu))))
    return pl.DataFrame([row for row in rows if row[2]], schema=SCHEMA, orient="row")


def _outside(trace: Trace, gpu: pl.DataFrame) -> pl.DataFrame:
    """The linked events that no marked step launched; none where no step is marked."""
    spans = step_spans(trace).select("rank", "end", launched="ts")
    linked = gpu.filter("linked").select("rank", "dur", "launched").with_columns(pl.col("rank").fill_null(-1))
    if spans.is_empty() or linked.is_empty():
        return linked.clear()
    spans = spans.with_columns(pl.col("rank").fill_null(-1)).sort("launched")
    found = linked.sort("launched").join_asof(spans, on="launched", by="rank", check_sortedness=False)
    return found.filter(pl.col("end").is_null() | (pl.col("launched") >= pl.col("end")))


def _sums(events: pl.DataFrame) -> tuple[int, int]:
    return events.height, int(events["dur"].sum())
