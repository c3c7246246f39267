"""One run in several files: profilers write the same events in each format that they are asked for, and files are copied."""

from __future__ import annotations

import polars as pl

from rung.trace.ranks import stated_rank
from rung.trace.table import Trace

REASON = "file that repeats another one"
# What says most of an event comes first; a format that is not here comes before all.
_LESS = ("rocpd", "rocprofv3-json", "rocprofv3-csv", "pftrace", "rocprof-legacy-db", "rocprof-json", "rocprof-csv")


def repeated(traces: list[Trace]) -> set[int]:
    """The places of those that hold nothing new: copies of another; and those each of whose kernels (of the calls, where a rank
    has no kernels) has the start and the duration, in ns, of one in a trace of another format.

    Of two that say the same the one that says more of each event stays; of a file of one process and a folder of
    several, the folder.
    """
    gone = _copies(traces)
    if len({trace.format for trace in traces}) < 2:
        return gone
    times = [_times(trace) for trace in traces]
    order = sorted(range(len(traces)), key=lambda place: _preference(traces[place].format))
    # First what the better ones hold together, then what is left of them in a worse one that holds more.
    for better in (True, False):
        for place in order:
            others = [
                other
                for other in order
                if other not in gone
                and traces[other].format != traces[place].format
                and (_preference(traces[other].format) < _preference(traces[place].format)) is better
            ]
            if place not in gone and times[place].height and _inside(times[place], [times[other] for other in others]):
                gone.add(place)
    return gone


def _copies(traces: list[Trace]) -> set[int]:
    """The places of those that state the same rank and have the same events as one before."""
    found = set()
    alike: dict[tuple[object, ...], list[pl.DataFrame]] = {}  # compared in full are only those of one sum of times
    for place, trace in enumerate(traces):
        rank, events = stated_rank(trace), trace.events
        if rank is None:
            continue
        before = alike.setdefault((rank, events.height, events["ts"].sum(), events["dur"].sum()), [])
        if any(events.equals(other) for other in before):
            found.add(place)
        else:
            before.append(events)
    return found


def _preference(name: str) -> int:
    return _LESS.index(name) if name in _LESS else -1


def _times(trace: Trace) -> pl.DataFrame:
    """Starts and durations of its kernels and calls, and whether they `decide`: the calls only of a rank without kernels."""
    kernel = pl.col("kind") == "kernel"
    return (
        trace.events.lazy()
        .filter(pl.col("kind").is_in(["kernel", "runtime"]))
        .select("ts", "dur", decides=kernel | ~kernel.any().over("rank"))
        .collect()
    )


def _inside(these: pl.DataFrame, others: list[pl.DataFrame]) -> bool:
    return bool(others) and these.filter("decides").join(pl.concat(others), on=["ts", "dur"], how="anti").is_empty()
