"""Did kernels run one at a time, because their hardware counters were read?"""

from __future__ import annotations

from rung.trace.table import Trace

NOTE = (
    "hardware counters were read: kernels ran one at a time, and times, gaps and shares are not those of a run without."
)


def serialized(trace: Trace) -> bool:
    """Whether the times of the GPU are of a run that read counters. `rung profile` takes them from a run of its own, and says in
    how many passes the counters were read."""
    return not trace.counters.is_empty() and not trace.events.is_empty() and "passes" not in trace.meta
