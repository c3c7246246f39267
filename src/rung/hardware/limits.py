"""What of the machine this process may use: CPU cores and memory, within the limits of its user, container or job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

MANY_CORES = 8  # from which workers are started, and candidates compiled, ahead of their use
CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")  # a line a hierarchy: number, controllers (none: version 2), the group's path


def usable_cores() -> int:
    """Cores within the affinity mask (`taskset`, SLURM) and the CPU quota of the control groups (containers), at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups(""):  # cpu.max: microseconds of CPU time a period, or "max"
        words = _words(group / "cpu.max")
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            allowed = min(allowed, int(words[0]) // int(words[1]))
    for group in _groups("cpu"):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota and period:
            allowed = min(allowed, quota // period)
    return max(1, allowed)


def free_memory() -> int:
    """Bytes that more processes could take: what is available on the machine, within the limits of the control groups (containers,
    SLURM). Pages of files that a group holds can be taken back, and count as free."""
    free = int(psutil.virtual_memory().available)
    for controller, limit, used, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _groups(controller):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                stat = _words(group / "memory.stat")
                held = dict(zip(stat[::2], stat[1::2], strict=False)).get(cached, "0")
                free = min(free, most - now + (int(held) if held.isdigit() else 0))
    return max(0, free)


def _groups(controller: str) -> Iterator[Path]:
    """The control group of this process and those above it, whose limits hold, too. controller: of version 1; empty: version 2."""
    for line in _text(OWN).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controller else CGROUPS
        own = Path(path.lstrip("/"))
        yield from (root / own, *(root / above for above in own.parents if own.parts))


def _number(path: Path) -> int | None:
    """None where there is no limit, or no such file."""
    words = _words(path)
    return int(words[0]) if len(words) == 1 and words[0].isdigit() else None


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
