"""What CPU time says where wall time does not decide, on a machine that others use.

CPU time leaves out the time in which a step waits for a core. It is no latency, for threads that run side by side are added up, so it
decides nothing alone: where a step waited, and both clocks say that a candidate is faster, but wall time not with confidence, its
recipe stays on disk as provisional.
"""

from __future__ import annotations

from collections.abc import Iterable

from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.measure import Comparison
from rung.measure.core_time import BUSY
from rung.records.climb import Attempt
from rung.records.measured import Compared
from rung.records.record import record_of
from rung.timing.duel import Duel


def by_cpu_time(wall: Comparison, cpu: Comparison | None, waited: Iterable[float]) -> str:
    """What keeps a recipe as provisional that wall time neither shows to be faster nor refutes, as a part of a sentence; empty where
    nothing does. waited: of each side, the share of the time in which it waited for a core."""
    if cpu is None:
        return ""
    return _doubt(record_of(Compared, wall), record_of(Compared, cpu), max(waited, default=0.0))


def of_record(record: Attempt) -> str:
    """The same of an attempt's record."""
    waited = [share or 0.0 for share in (record.waited or {}).values()]
    if not record.comparison or not record.cpu_time:
        return ""
    return _doubt(record.comparison, record.cpu_time, max(waited, default=0.0))


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
        f"its threads waited for a core {share:.0%} of the time, too often for wall time to decide; in CPU time it is "
        f"{gain.value:.2f}{between} times as fast"
    )


def clocks_disagree(duel: Duel) -> bool:
    """Whether one restart should decide nothing alone: its threads waited for cores, and wall time and CPU time are on two sides of what
    a gain is."""
    cpu, share = duel.by_cpu_time(), max(duel.waited.values(), default=0.0)
    if cpu is None or duel.comparison is None or share <= BUSY:
        return False
    return (duel.comparison.speedup.value >= PROVISIONAL_GAIN) != (cpu.speedup.value >= PROVISIONAL_GAIN)
