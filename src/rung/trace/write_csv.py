"""Writes the event table as CSV, and the hardware counters, where there are any, beside it."""

from __future__ import annotations

from pathlib import Path

from rung.trace.output import whole
from rung.trace.table import Trace


def write(trace: Trace, path: str | Path, *, counters: str | Path | None = None) -> list[Path]:
    """Writes the columns of SCHEMA, a row an event, and returns the files written.

    Times are integer ns. A missing value is an empty cell, an empty text is "". The columns of COUNTERS go to
    `counters`, by default `<name>.counters.csv`, and only if the trace has any. Each is gzip if it ends in .gz.
    """
    path = Path(path)
    written = [path]
    with whole(path) as file:
        trace.events.write_csv(file, quote_style="necessary")
    if trace.counters.height:
        beside = Path(counters) if counters is not None else counters_beside(path)
        with whole(beside) as file:
            trace.counters.write_csv(file, quote_style="necessary")
        written.append(beside)
    return written


def counters_beside(path: Path) -> Path:
    """Where the counters of the events in `path` go: t.csv.gz has t.counters.csv.gz beside it."""
    packed = ".gz" if path.name.endswith(".gz") else ""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".csv") + ".counters.csv" + packed)
