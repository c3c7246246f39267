"""What Linux does with processes whose parent ends. On other systems these do nothing. Below all rooms."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36


def end_with_parent(parent: int) -> None:
    """Kills this process as soon as its parent ends, however that ends: it would go on for nobody.

    parent: the parent's id, as the parent knows it; it may be gone by now.
    """
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of every process below it whose own parent ends."""
    _prctl(_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)
