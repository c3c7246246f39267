"""A step under the clock as it comes: with whatever its launch adds to it."""

from __future__ import annotations

import time
from typing import Any

from rung.hardware.device import Device, synchronize
from rung.measure.clock import Block, Step, elapsed, empty_pair, event, launch, time_block


class Clock:
    """The CPU's own clock around every call."""

    name = "clock"

    def __init__(self, step: Step, device: Device, flush: Step | None = None) -> None:
        self._step, self._device, self._flush = step, device, flush

    def block(self, count: int) -> Block:
        if not self._flush:
            return time_block(self._step, count, self._device)
        samples: list[float] = []
        for _ in range(count):
            self._flush()
            begin = time.perf_counter_ns()
            self._step()
            samples.append(time.perf_counter_ns() - begin)
        return Block(samples, 0.0, count)

    def facts(self) -> dict[str, Any]:
        return {"name": self.name}


class Events:
    """Events between calls that follow each other as the host launches them (a CPU's clock, on a CPU); behind a flush,
    a pair around each."""

    name = "events"

    def __init__(self, step: Step, device: Device, flush: Step | None = None) -> None:
        self._step, self._device, self._flush = step, device, flush

    def block(self, count: int) -> Block:
        if not self._flush:
            return time_block(self._step, count, self._device)
        pairs = [(event(), event()) for _ in range(count)]
        synchronize(self._device)
        for begin, end in pairs:
            self._flush()
            begin.record()
            self._step()
            end.record()
        synchronize(self._device)
        return Block([elapsed(begin, end) for begin, end in pairs], 0.0, count)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "launch_ns": launch(self._step, self._device),
            "empty_pair_ns": empty_pair(self._device),
        }
