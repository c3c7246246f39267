"""Timing steps on the device: event pairs between back-to-back steps on a GPU, the CPU's clock on a CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

from rung.hardware.device import Device, synchronize
from rung.measure.gpu_clock import Step, elapsed, event


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
