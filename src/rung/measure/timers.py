"""Which timer a step is given: as it comes, or with its launches hidden; with warm or cold caches."""

from __future__ import annotations

import time
from typing import Any, Protocol

from rung.errors import UsageError
from rung.hardware.device import Device
from rung.measure.as_launched import Clock, Events
from rung.measure.clock import Block
from rung.measure.flush import flush_for
from rung.measure.gpu_clock import Step, from_idle_to_idle
from rung.measure.without_launch import Batch, Graph

NAMES = ("auto", "events", "graph", "batch")

SHORT = 100_000  # ns of one call with its synchronization: below, launching is a part of it that shows


class Timer(Protocol):
    """name: events, graph or batch."""

    name: str

    def block(self, count: int) -> Block:
        """`count` samples, nanoseconds a call, taken together; the device is drained before and after."""
        ...

    def facts(self) -> dict[str, Any]:
        """How it was timed, as plain values for the record."""
        ...


def timer_for(step: Step, device: Device, wanted: str = "auto", flush: Step | None = None) -> Timer:
    """The timer of that name; `auto` takes `graph` for a call too short to be timed as it comes, where it can be
    captured, else `batch`; and `events` for anything longer.

    flush: empties the caches before every call (`rung.measure.flush`). Raises UsageError for a timer that the
    device or the step does not allow.
    """
    if wanted not in NAMES:
        raise UsageError(f"there is no timer {wanted!r}; there are {', '.join(NAMES)}.")
    if not device.is_gpu:
        if wanted != "auto":
            raise UsageError(f"--timer {wanted} is for a GPU; on a CPU there is one timer: its clock.")
        return Clock(step, device, flush)
    if wanted == "batch" and flush:
        raise UsageError("--timer batch runs calls one after the other, so none of them is cold; use --timer graph.")
    if wanted == "events" or (wanted == "auto" and from_idle_to_idle(step, device) >= SHORT):
        return Events(step, device, flush)
    if wanted != "batch":
        try:
            return Graph(step, device, flush)
        except UsageError:
            if wanted == "graph":
                raise
    return Events(step, device, flush) if flush else Batch(step, device)


def choose(step: Step, device: Device, wanted: str, cold: bool) -> tuple[Timer, dict[str, Any]]:
    """`timer_for`, and what the record and the planning of samples need of it: its facts, `cold` (bytes written before
    every call, or None) and `sample_ns` (wall time that one sample takes)."""
    flush = flush_for(device) if cold else None
    timer = timer_for(step, device, wanted, flush)
    facts = timer.facts()
    timer.block(1)
    begin = time.perf_counter_ns()
    timer.block(3)
    took = (time.perf_counter_ns() - begin) // 3
    return timer, {**facts, "cold": flush.size if flush else None, "sample_ns": took}
