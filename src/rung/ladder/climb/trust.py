"""Whether what was timed is believed.

A candidate that is faster is asked whether what it reports of itself is what happened: by other clocks, on other inputs, as it was timed.

On a machine that others use, CPU time says something where wall time does not decide. It leaves out the time in which a step waits for a
core. It is no latency, for threads that run side by side are added up, so it decides nothing alone: where a step waited, and both clocks say
that a candidate is faster, but wall time not with confidence, its recipe stays on disk as provisional.
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
from rung.records.compare import Interleaved
from rung.records.measured import Compared
from rung.records.record import record_of
from rung.timing.ab_run import ABRun

MOST_HIDDEN = 0.5  # of a block's time: reading clocks and pipes takes far less
HIDDEN = 0.05  # of a block's time, more than the best's, from which it may be a part of the gain
SLOWER = 1.25  # times as long on new inputs: what data alone does to a step's fastest run is less


def distrusted(record: Attempt | Interleaved, speedup: float) -> str | None:
    """Why a candidate is not believed, as a sentence, or None. record: with `hidden`, the share of the
    time of its blocks that each side's samples leave out, and `witness` (`rung.ladder.candidate.Candidate.witness`)."""
    assert record.hidden
    best, hidden, witness = record.hidden["best"] or 0.0, record.hidden["candidate"] or 0.0, record.witness
    if hidden > MOST_HIDDEN:
        return f"{hidden:.0%} of the time of its blocks is missing from the times that it reports: it puts work off, a clock was tampered with, or other processes took the cores."
    waited = speedup * (1 - hidden) / (1 - min(best, MOST_HIDDEN))
    if hidden - best > HIDDEN and _lost(speedup, waited):
        return f"it reports times that make it {speedup:.2f}× as fast, but the process that waited for it measured {waited:.2f}×: it puts work off, a clock was tampered with, or other processes took the cores."
    if witness and witness.failures:
        first = witness.failures[0].removesuffix(" (while it was timed)")  # `rung.verify.witness.CASE`
        return f"while it was timed, its results differed from the baseline's: {first}."
    new = (witness.unseen if witness else None) or 1.0
    if new > SLOWER and _lost(speedup, speedup / new):
        return f"a step takes {new:.1f}× as long on new inputs: it reused earlier results instead of computing them."
    return None


def _lost(claimed: float, left: float) -> bool:
    """Whether less than half of a gain is left."""
    return math.log(max(left, 1e-9)) < 0.5 * math.log(max(claimed, 1.0))


def by_cpu_time(wall: Comparison, cpu: Comparison | None, waited: Iterable[float]) -> str:
    """What keeps a recipe as provisional that wall time neither shows to be faster nor refutes, as a part of a sentence; empty where
    nothing does. waited: of each side, the share of the time in which it waited for a core."""
    if cpu is None:
        return ""
    return _doubt(record_of(Compared, wall), record_of(Compared, cpu), max(waited, default=0.0))


def by_cpu_time_of(record: Attempt) -> str:
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


def because_busy(record: Attempt) -> str:
    """What is added to why nothing was shown, on busy cores: what is claimed there is the less of two measures."""
    return f"; {record.busy}" if record.busy else ""


def with_alone(state: State, restart: Restart, kept: Sequence[str] = ()) -> Restart:
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
