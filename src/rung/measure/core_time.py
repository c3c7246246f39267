"""What the threads of this process got of the machine's cores, and how long they were ready and got none.

On a machine that others use, a step takes longer because its threads wait for a core. The kernel counts both, so that a result can say
how much of it was waiting. CPU time leaves the waiting out; it is no latency, for threads that run side by side are added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TASKS = Path("/proc/self/task")
BUSY = 0.10  # a share of waiting from which it is worth a word, and more blocks
MOST_WAITED = 0.25  # one from which what looks slower may not be


@dataclass(frozen=True)
class CoreTime:
    """Nanoseconds of all threads together: `ran` on a core, and `waited` for one."""

    ran: float
    waited: float

    def since(self, earlier: CoreTime) -> CoreTime:
        """Of a stretch of time. A thread that ended in it takes what it had along, so that little may look like less than nothing."""
        return CoreTime(max(0.0, self.ran - earlier.ran), max(0.0, self.waited - earlier.waited))

    @property
    def share_waited(self) -> float:
        both = self.ran + self.waited
        return self.waited / both if both else 0.0


def core_time(tasks: Path = TASKS) -> CoreTime | None:
    """So far, of the threads that there are; None where the system does not tell (Linux does)."""
    ran = waited = 0
    try:
        threads = list(tasks.iterdir())
    except OSError:
        return None
    found = False
    for thread in threads:
        try:
            on_core, for_one = (thread / "schedstat").read_bytes().split()[:2]
        except (OSError, ValueError):  # it ended a moment ago, or the kernel keeps no such figures
            continue
        found = True
        ran, waited = ran + int(on_core), waited + int(for_one)
    return CoreTime(ran, waited) if found else None


def total(parts: Iterable[CoreTime]) -> CoreTime:
    parts = list(parts)
    return CoreTime(sum(part.ran for part in parts), sum(part.waited for part in parts))


def waiting(share: float) -> str:
    """What to say of a share of waiting; empty where it is small."""
    if share <= BUSY:
        return ""
    return f"its threads waited for a core {share:.0%} of the time: other processes use the cores, or it has more threads than cores"
