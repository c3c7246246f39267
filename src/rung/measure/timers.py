"""Which timer a step is given: as it comes, or with its launches hidden; with warm caches, or with cold ones, for which memory is written
between two calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rung.errors import UsageError
from rung.hardware import Device, peaks_of
from rung.measure.as_launched import Clock, Events
from rung.measure.clock import Block, Step, from_idle_to_idle
from rung.measure.without_launch import Batch, Graph

NAMES = ("auto", "events", "graph", "batch")
HIDING = ("events", "batch", "graph")  # of launches, the least first

SHORT = 100_000  # ns of one call with its synchronization: below, launching is a part of it that shows
SLOW = 500_000_000  # ns of one call: from there on, launching is nothing beside it


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

    flush: empties the caches before every call (`rung.measure.timers`). Raises UsageError for a timer that the
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


def choose(step: Step, device: Device, wanted: str, cold: bool, known: float = 0.0) -> tuple[Timer, dict[str, Any]]:
    """`timer_for`, and what the record and the planning of samples need of it: its facts, `cold` (bytes written before
    every call, or None) and `sample_ns` (wall time that one sample takes). known: nanoseconds that a call is known to take, 0 where it
    is not: no call is made to plan with where it takes longer than a whole block of others."""
    flush = flush_for(device) if cold else None
    slow = known >= SLOW and wanted in ("auto", "events")
    timer = timer_for(step, device, "events" if slow and device.is_gpu else wanted, flush)
    if slow:
        return timer, {"name": timer.name, "cold": flush.size if flush else None, "sample_ns": known}
    facts = timer.facts()
    timer.block(1)
    begin = time.perf_counter_ns()
    timer.block(3)
    took = (time.perf_counter_ns() - begin) // 3
    return timer, {**facts, "cold": flush.size if flush else None, "sample_ns": took}


def shared(names: Iterable[str]) -> str:
    """The timer for sides that are compared, of those that `auto` took for each: the one that hides the least, which all of them allow. A
    step of 90 us in a graph against one of 110 us as it is launched would look several times as fast, and be as fast."""
    return min(names, key=HIDING.index)


TIMES = 2  # the cache's size once is not enough where its replacement is not strict; 2x to 20x agree on an H100
LEAST = 64 << 20  # bytes, where nothing is known of the caches


@dataclass(frozen=True)
class Flush:
    """Calling it writes `size` bytes on the device."""

    size: int
    write: Callable[[], object]

    def __call__(self) -> None:
        self.write()


def flush_for(device: Device) -> Flush:
    """Twice the last cache before the memory: of a GPU as peaks.toml has it (an MI300 reports its L2, not the 256 MiB
    behind it), or as the device reports it; of a CPU as the system does."""
    import torch

    size = max(LEAST, TIMES * last_level_cache(device))
    buffer = torch.empty(size // 4, dtype=torch.float32, device=device.torch_name)
    return Flush(size, buffer.zero_)


def last_level_cache(device: Device) -> int:
    """Bytes of the last cache before the memory; 0 where it is not known."""
    import torch

    if device.is_gpu:
        peaks = peaks_of(device)
        reported = getattr(torch.cuda.get_device_properties(device.index), "L2_cache_size", 0)
        return int(max(reported, (peaks.cache or 0) if peaks else 0))
    try:
        return max(0, os.sysconf("SC_LEVEL3_CACHE_SIZE"))
    except (ValueError, OSError):
        return 0
