"""A lock on a GPU's memory for verifications that run beside each other: they compile at once, and compare one after the other.

A comparison holds several times the memory of the candidate: a step in float64 that nobody compiled, recorded graphs and the results of three
models. It takes seconds of a verification; compiling takes the minute before. With the lock that memory is needed once, and not once for each.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

import torch

from rung.hardware.device import Device, peak_memory, release_cache, reset_peak_memory


class GpuLock:
    """This process's side of the lock. path: a file that all processes name which share the lock; without one nothing is waited for.

    Each GPU has a lock of its own.
    """

    def __init__(self, path: str, device: Device) -> None:
        self._device = device
        self._path = f"{path}-{_name(device)}" if path and device.is_gpu else ""
        self._peaks_outside: dict[str, int] = {}  # while the lock was not held
        self._peaks_inside: dict[str, int] = {}
        self._held = False

    @property
    def shared(self) -> bool:
        """Whether others may wait for the lock. If so, do what takes long and little memory before holding it."""
        return bool(self._path)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Waits for the lock. At the end it gives cached memory back to the device. Within another `hold` it does nothing."""
        if not self._path or self._held:
            yield
            return
        with open(self._path, "a", encoding="utf-8") as file:
            release_cache(self._device)
            with contextlib.suppress(OSError):  # a file system without locks: then all may be at once
                fcntl.flock(file, fcntl.LOCK_EX)
            self._peaks_outside = self._take_peaks(self._peaks_outside)
            self._held = True
            try:
                yield
            finally:
                self._held = False
                self._peaks_inside = self._take_peaks(self._peaks_inside)
                release_cache(self._device)
                reset_peak_memory(self._device)
                # Closing it is not enough: a process that the workload forked meanwhile has the file open, too.
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_UN)

    def memory(self) -> dict[str, int]:
        """The peaks of the process in bytes, and `beside`: the most that was reserved while it did not hold the lock."""
        outside = self._take_peaks(self._peaks_outside)
        peaks = {kind: max(size, self._peaks_inside.get(kind, 0)) for kind, size in outside.items()}
        return {**peaks, "beside": outside["reserved"]} if self._path else peaks

    def _take_peaks(self, before: dict[str, int]) -> dict[str, int]:
        """The larger of the peaks since the last reset and those before. Resets them."""
        now = peak_memory(self._device)
        reset_peak_memory(self._device)
        return {kind: max(size, before.get(kind, 0)) for kind, size in now.items()}


def _name(device: Device) -> str:
    return str(getattr(torch.cuda.get_device_properties(device.index), "uuid", device.index))
