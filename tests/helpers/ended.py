"""Whether a process that a test has seen is gone by now."""

import time

import psutil


def gone(pid: int, seconds: float = 60) -> bool:
    """Waits until it is, for so long at most. A zombie is gone: nobody may have asked how it ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False
