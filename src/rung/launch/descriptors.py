"""File descriptors by the thousand: a job has two connections a rank."""

from __future__ import annotations

import os
import resource
import select
from collections.abc import Iterable
from typing import Protocol

SPARE = 64  # files that a process opens beside its connections
MOST_MILLISECONDS = 2**31 - 1  # that `poll` takes: 24 days


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def readable(files: Iterable[int | HasDescriptor], seconds: float | None = None) -> list[int]:
    """The descriptors that have something to read, or whose other end is closed, once there are any; none after so many seconds.

    `select.select` takes no descriptor from 1024 on.
    """
    waiting = select.poll()
    for file in files:
        waiting.register(file, select.POLLIN)
    most = None if seconds is None else min(1000 * max(0.0, seconds), MOST_MILLISECONDS)
    return [descriptor for descriptor, _ in waiting.poll(most)]


def make_room(files: int) -> bool:
    """Raises the soft limit of open files so that this process can open so many more, as far as the hard limit allows. Returns whether
    any more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return True
    try:
        here = len(os.listdir("/dev/fd"))
    except OSError:  # looking needs a file, too
        here = soft
    wanted = here + files + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # where the system allows less than it says
            return here < soft
    return here < max(soft, wanted)
