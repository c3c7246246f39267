"""Timing steps on the device: event pairs between back-to-back steps on a GPU, the CPU's clock on a CPU; what two events say, how to keep a
GPU busy, and what launching a call costs the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
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


BESIDE = 10_000  # ns between two events with nothing between them, at most: an H100 says 2 us
QUEUED = 50  # calls at most: of a kernel each they take ten times as long as what is between two events
QUEUED_NS = 100_000_000  # that they take at most, by the host's clock


def leaves_idle(step: Step, device: Device) -> bool:
    """Whether a GPU has nothing to do for calls of this step: they take none of its memory, and behind a kernel that spins until they have
    returned, the events before and after them lie side by side. False, too, where that cannot be told: a call waits for the GPU, or takes
    long."""
    taken = _blocks_taken(device)
    begin = time.perf_counter_ns()
    step()
    took = max(time.perf_counter_ns() - begin, 1)
    if took > QUEUED_NS:
        return False
    synchronize(device)
    count = int(max(1, min(QUEUED, QUEUED_NS // took)))
    before, after = event(), event()
    spin(device, 2 * count * took + 1e6)
    before.record()
    repeat(count, step)
    spun = not before.query()
    after.record()
    synchronize(device)
    return spun and elapsed(before, after) < BESIDE and _blocks_taken(device) == taken


def _blocks_taken(device: Device) -> int:
    """Blocks of memory that this process has asked for on the GPU so far, freed ones among them."""
    import torch

    return int(torch.cuda.memory_stats(device.index).get("allocation.all.allocated", 0))


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


@dataclass(frozen=True)
class Block:
    """Steps timed back to back: nanoseconds of each; `outside`: the share of the wall time, device drained,
    that the samples do not explain (work on other streams, waiting); `calls`: how often the step ran for them."""

    samples: list[float]
    outside: float
    calls: int


def time_block(step: Step, count: int, device: Device) -> Block:
    """Times `count` steps.

    On a GPU one untimed step leads in, so that the first timed one meets a busy queue as all others do; the
    events lie between the steps, and the device is drained (all streams) before the block ends.
    """
    begin = time.perf_counter_ns()
    if not device.is_gpu:
        samples: list[float] = []
        for _ in range(count):
            start = time.perf_counter_ns()
            step()
            samples.append(time.perf_counter_ns() - start)
        return Block(samples, 1 - sum(samples) / (time.perf_counter_ns() - begin), count)

    synchronize(device)
    begin = time.perf_counter_ns()
    marks = [event() for _ in range(count + 1)]
    step()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    synchronize(device)
    wall = time.perf_counter_ns() - begin
    samples = [float(elapsed(a, b)) for a, b in pairwise(marks)]
    return Block(samples, 1 - sum(samples) / count * (count + 1) / wall, count + 1)
