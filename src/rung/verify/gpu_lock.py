"""Verifications beside each other on one GPU: while they compile they hold little of its memory, and then they compare in turns.

A step in float64 that nobody compiled, recorded graphs and the results of three models hold several times what the candidate does. That takes
seconds of a verification; the minute before goes to compiling. So verifications that take turns need that memory once, and not once each.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

import torch

from rung.hardware.device import Device, peak_memory, release_cache, reset_peak_memory


class Turns:
    """This process's turns. path: a file that all processes which take turns have; without one nothing is waited for.

    On several GPUs each has turns of its own.
    """

    def __init__(self, path: str, device: Device) -> None:
        self._device = device
        self._path = f"{path}-{_name(device)}" if path and device.is_gpu else ""
        self._beside: dict[str, int] = {}  # peaks outside of turns
        self._within: dict[str, int] = {}
        self._taken = False

    @property
    def shared(self) -> bool:
        """Whether others may wait for the turn: then what takes long and little memory is done before it is taken."""
        return bool(self._path)

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Waits for the turn, and gives the memory back in the end that nothing is kept in."""
        if not self._path or self._taken:
            yield
            return
        with open(self._path, "a", encoding="utf-8") as file:
            release_cache(self._device)
            with contextlib.suppress(OSError):  # a file system without locks: then all may be at once
                fcntl.flock(file, fcntl.LOCK_EX)
            self._beside = self._seen(self._beside)
            self._taken = True
            try:
                yield
            finally:
                self._taken = False
                self._within = self._seen(self._within)
                release_cache(self._device)
                reset_peak_memory(self._device)
                # Closing it is not enough: a process that the workload forked meanwhile has the file open, too.
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)

    def memory(self) -> dict[str, int]:
        """The peaks of the process in bytes, and `beside`: what was reserved at most outside of its turns."""
        beside = self._seen(self._beside)
        peaks = {kind: max(size, self._within.get(kind, 0)) for kind, size in beside.items()}
        return {**peaks, "beside": beside["reserved"]} if self._path else peaks

    def _seen(self, before: dict[str, int]) -> dict[str, int]:
        """The peaks since they were reset, or those before them where these are larger. They start anew."""
        now = peak_memory(self._device)
        reset_peak_memory(self._device)
        return {kind: max(size, before.get(kind, 0)) for kind, size in now.items()}


def _name(device: Device) -> str:
    return str(getattr(torch.cuda.get_device_properties(device.index), "uuid", device.index))
