"""A GPU's clock: what two events say, how to keep the device busy, and what launching a call costs the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rung.hardware.device import Device, synchronize

Step = Callable[[], object]


def event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)


def elapsed(begin: Any, end: Any) -> int:
    """Nanoseconds between two events; tiny negative times are known on ROCm and are nothing."""
    milliseconds: float = begin.elapsed_time(end)
    return max(0, round(milliseconds * 1e6))


def empty_pair(device: Device) -> int:
    """What a pair of events says of nothing at all: no sample of `events` can be shorter than about this."""
    pairs = [(event(), event()) for _ in range(51)]
    synchronize(device)
    for begin, end in pairs:
        begin.record()
        end.record()
    synchronize(device)
    return sorted(elapsed(a, b) for a, b in pairs)[25]


def spin(device: Device, ns: float) -> None:
    """Keeps the device busy for about `ns`, with a kernel that spins."""
    import torch

    torch.cuda._sleep(int(ns * _spins_a_ns(device)) + 1)


@lru_cache(maxsize=64)
def _spins_a_ns(device: Device) -> float:
    """What a spinning kernel counts differs: the cycles of a GPU's clock, or those of a slow reference clock."""
    import torch

    begin, end = event(), event()
    spins = 1_000_000
    for _ in range(2):  # the first one wakes the clock up
        begin.record()
        torch.cuda._sleep(spins)
        end.record()
        synchronize(device)
    return spins / max(elapsed(begin, end), 1)


def repeat(count: int, *calls: Step) -> None:
    for _ in range(count):
        for call in calls:
            call()


def launch(step: Step, device: Device) -> float:
    """Nanoseconds that the host needs for one call, while the device is kept busy."""
    synchronize(device)
    spin(device, 2e6)
    begin = time.perf_counter_ns()
    repeat(20, step)
    took = time.perf_counter_ns() - begin
    synchronize(device)
    return took / 20


def from_idle_to_idle(step: Step, device: Device) -> int:
    """Nanoseconds of one call, from an idle device to an idle device; the shortest of a few."""
    found = []
    for _ in range(5):
        synchronize(device)
        begin = time.perf_counter_ns()
        step()
        synchronize(device)
        found.append(time.perf_counter_ns() - begin)
    return min(found)
