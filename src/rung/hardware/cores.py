"""How many CPU cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

MANY_CORES = 8  # from which workers are started, and candidates compiled, ahead of their use
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of the control group (v2): microseconds of CPU time a period, or "max"


def usable_cores(quota: Path = QUOTA) -> int:
    """Cores within the affinity mask (`taskset`, SLURM) and the CPU quota of the control group (containers), at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        most, period = quota.read_text().split()
        allowed = min(allowed, int(most) // int(period))
    except (OSError, ValueError):  # no such group, or "max"
        pass
    return max(1, allowed)
