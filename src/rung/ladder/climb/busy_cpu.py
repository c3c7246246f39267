"""What CPU time says where wall time does not decide, on a machine that others use.

CPU time leaves out the time in which a step waits for a core. It is no latency, because the times of threads that run side by side are added
up. So it decides nothing alone. Where a step waited, both clocks say that a candidate is faster, but wall time does not with confidence, the
recipe stays on disk as provisional.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.ladder.climb.state import State
from rung.measure import Comparison, Restart
from rung.measure.core_time import BUSY, MOST_WAITED
from rung.records.climb import Attempt
from rung.records.measured import Compared
from rung.records.record import record_of
from rung.timing.ab_run import ABRun


def doubt_by_cpu_time(wall: Comparison, cpu: Comparison | None, waited: Iterable[float]) -> str:
    """What keeps a recipe as provisional that wall time neither shows to be faster nor refutes, as a part of a sentence; empty where
    nothing does. waited: of each side, the share of the time in which it waited for a core."""
    if cpu is None:
        return ""
    return _doubt(record_of(Compared, wall), record_of(Compared, cpu), max(waited, default=0.0))


def doubt_of_record(record: Attempt) -> str:
    """The same of an attempt's record."""
    waited = [share or 0.0 for share in (record.waited or {}).values()]
    if not record.comparison or not record.cpu_time:
        return ""
    return _doubt(record.comparison, record.cpu_time, max(waited, default=0.0))


def waited_for_cores(record: Attempt) -> str:
    """What may have made a candidate slower on a machine that others use, as a part of a sentence: they take cores from both sides. Empty
    where CPU time says that it is slower, too."""
    share = min((share or 0.0 for share in (record.waited or {}).values()), default=0.0)
    if share <= MOST_WAITED or (record.cpu_time and record.cpu_time.speedup.value < 1):
        return ""
    return f"both sides waited for a CPU core {share:.0%} of the time"


def _doubt(wall: Compared, cpu: Compared, share: float) -> str:
    gain = cpu.speedup
    if (
        wall.answer != "undecided"
        or cpu.answer != "faster"
        or share <= BUSY
        or min(wall.speedup.value, gain.value) < PROVISIONAL_GAIN
    ):
        return ""
    between = f" ({gain.low:.2f} to {gain.high:.2f})" if gain.low is not None and gain.high is not None else ""
    return (
        f"its threads waited for a CPU core {share:.0%} of the time, so wall time cannot decide; in CPU time it is "
        f"{gain.value:.2f}×{between} as fast"
    )


def busy_clause(record: Attempt) -> str:
    """What is added to why nothing was shown, on busy cores: what is claimed there is the less of two measures."""
    return f"; {record.busy}" if record.busy else ""


def with_solo_baseline(state: State, restart: Restart, kept: Sequence[str] = ()) -> Restart:
    """A restart whose first side has these rungs. On busy cores it may wait in every step, so of the untouched model its shortest step when it was
    timed alone counts, too."""
    if kept:
        return restart
    alone = min((ns for ns in state.baseline.samples or () if ns > 0), default=math.inf)
    if not restart.shortest or alone >= restart.shortest[0]:
        return restart
    return replace(restart, shortest=(alone, *restart.shortest[1:]))


def clocks_disagree(ab_run: ABRun) -> bool:
    """Whether one restart should decide nothing alone: its threads waited for cores, and wall time and CPU time are on two sides of what
    a gain is."""
    cpu, share = ab_run.by_cpu_time(), max(ab_run.waited.values(), default=0.0)
    if cpu is None or ab_run.comparison is None or share <= BUSY:
        return False
    return (ab_run.comparison.speedup.value >= PROVISIONAL_GAIN) != (cpu.speedup.value >= PROVISIONAL_GAIN)
