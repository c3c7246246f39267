"""How a step is put under the clock of a GPU: as it comes, or with its launches hidden; with warm or cold caches.

A pair of events around one short call measures its launch: on an H100 it says 15.9 us of a kernel that takes one.
Only what the GPU finds waiting for it, without the host, shows what the GPU needs: calls recorded in a graph (the
slope between n and 2 n of them, so that a graph's own start cancels), or queued up behind a kernel that spins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

from rung.errors import UsageError
from rung.hardware.device import Device, recording, synchronize
from rung.measure.clock import Block, time_block
from rung.measure.flush import flush_for

Step = Callable[[], object]

NAMES = ("auto", "events", "graph", "batch")

SHORT = 100_000  # ns of one call with its synchronization: below, launching is a part of it that shows
GRAPH_NS = 1_000_000  # of work in the smaller graph: its ends are then far below 1 % of it
MOST_CALLS = 500  # in the smaller graph; graphs of many thousand nodes are known to crash some drivers
QUEUE = 200  # calls behind a blocker: the launch queue of a GPU holds about a thousand kernels


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
    if wanted == "events" or (wanted == "auto" and _synchronous(step, device) >= SHORT):
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
        pairs = [(_event(), _event()) for _ in range(count)]
        synchronize(self._device)
        for begin, end in pairs:
            self._flush()
            begin.record()
            self._step()
            end.record()
        synchronize(self._device)
        return Block([_ns(begin, end) for begin, end in pairs], 0.0, count)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "launch_ns": _launch(self._step, self._device),
            "empty_pair_ns": _empty_pair(self._device),
        }


class Graph:
    """The slope between graphs of n and of 2 n calls; behind flushes, the difference that n calls make to n flushes.

    A sample is one pair of replays. Raises UsageError for a step that cannot be captured.
    """

    name = "graph"

    def __init__(self, step: Step, device: Device, flush: Step | None = None) -> None:
        self._step, self._device, self._flush = step, device, flush
        self._calls = 16
        self._capture()
        self._fit()
        # What the smaller graphs measured says how long the final ones are to be.
        rough = max(min(self.block(3).samples), 1.0)
        each = rough + (self._flush_ns() if flush else 0)
        calls = int(max(4, min(MOST_CALLS, GRAPH_NS / each)))
        if calls != self._calls:
            self._calls = calls
            self._capture()
            self._fit()

    def _fit(self) -> None:
        for graph in (self._small, self._large):  # the first replay uploads the graph
            graph.replay()
        synchronize(self._device)

    def _capture(self) -> None:
        flushes, n = self._flush or (lambda: None), self._calls
        if self._flush:
            self._small = self._recorded(lambda: _times(n, flushes))
            self._large = self._recorded(lambda: _times(n, flushes, self._step))
        else:
            self._small = self._recorded(lambda: _times(n, self._step))
            self._large = self._recorded(lambda: _times(2 * n, self._step))

    def _recorded(self, calls: Callable[[], None]) -> Any:
        import torch

        side = torch.cuda.Stream(self._device.index)
        side.wait_stream(torch.cuda.current_stream(self._device.index))
        try:
            with torch.cuda.stream(side):
                for _ in range(3):  # what a library does at its first call on a stream cannot be captured
                    self._step()
            synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with recording(graph, side, self._device):
                calls()
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
            raise UsageError(
                f"the step cannot be recorded as a graph ({type(error).__name__}: {reason}); use --timer events."
            ) from error
        return graph

    def _flush_ns(self) -> float:
        begin, end = _event(), _event()
        begin.record()
        self._small.replay()
        end.record()
        synchronize(self._device)
        return _ns(begin, end) / self._calls

    def block(self, count: int) -> Block:
        synchronize(self._device)
        # Blocked until all is queued up: the host's pace must not show between two graphs.
        marks = [_event() for _ in range(2 * count + 1)]
        _block(self._device, count * 50_000)
        self._small.replay()
        marks[0].record()
        for k in range(count):
            # Alternating the order, so that a drift of the clock has no side.
            pair = (self._small, self._large) if k % 2 == 0 else (self._large, self._small)
            for mark, graph in zip(marks[2 * k + 1 : 2 * k + 3], pair, strict=True):
                graph.replay()
                mark.record()
        synchronize(self._device)
        spans = [_ns(a, b) for a, b in pairwise(marks)]
        samples = [
            max(0.0, (spans[2 * k + 1] - spans[2 * k]) * (1 if k % 2 == 0 else -1) / self._calls) for k in range(count)
        ]
        return Block(samples, 0.0, (3 * count + 1) * self._calls)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "calls": self._calls,
            "launch_ns": _launch(self._step, self._device),
            "empty_pair_ns": _empty_pair(self._device),
        }


class Batch:
    """Many calls in one pair of events, queued up behind a kernel that spins until all of them are launched."""

    name = "batch"

    def __init__(self, step: Step, device: Device) -> None:
        self._step, self._device = step, device
        self._launch = _launch(step, device)
        self._calls = int(max(1, min(QUEUE, 20e6 / self._launch)))

    def block(self, count: int) -> Block:
        samples: list[float] = []
        for _ in range(count):
            begin, end = _event(), _event()
            synchronize(self._device)
            _block(self._device, 1.5 * self._launch * self._calls)
            begin.record()
            _times(self._calls, self._step)
            end.record()
            synchronize(self._device)
            samples.append(_ns(begin, end) / self._calls)
        return Block(samples, 0.0, count * self._calls)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "calls": self._calls,
            "launch_ns": self._launch,
            "empty_pair_ns": _empty_pair(self._device),
        }


def _block(device: Device, ns: float) -> None:
    """Keeps the device busy for about `ns`, with a kernel that spins."""
    import torch

    torch.cuda._sleep(int(ns * _spins_a_ns(device)) + 1)


@lru_cache(maxsize=64)
def _spins_a_ns(device: Device) -> float:
    """What a spinning kernel counts differs: the cycles of a GPU's clock, or those of a slow reference clock."""
    import torch

    begin, end = _event(), _event()
    spins = 1_000_000
    for _ in range(2):  # the first one wakes the clock up
        begin.record()
        torch.cuda._sleep(spins)
        end.record()
        synchronize(device)
    return spins / max(_ns(begin, end), 1)


def _times(count: int, *calls: Step) -> None:
    for _ in range(count):
        for call in calls:
            call()


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)


def _ns(begin: Any, end: Any) -> int:
    """Nanoseconds between two events; tiny negative times are known on ROCm and are nothing."""
    return max(0, round(begin.elapsed_time(end) * 1e6))


def _synchronous(step: Step, device: Device) -> int:
    """Nanoseconds of one call, from an idle device to an idle device; the shortest of a few."""
    found = []
    for _ in range(5):
        synchronize(device)
        begin = time.perf_counter_ns()
        step()
        synchronize(device)
        found.append(time.perf_counter_ns() - begin)
    return min(found)


def _launch(step: Step, device: Device) -> float:
    """Nanoseconds that the host needs for one call, while the device is kept busy."""
    synchronize(device)
    _block(device, 2e6)
    begin = time.perf_counter_ns()
    _times(20, step)
    took = time.perf_counter_ns() - begin
    synchronize(device)
    return took / 20


def _empty_pair(device: Device) -> int:
    """What a pair of events says of nothing at all: no sample of `events` can be shorter than about this."""
    pairs = [(_event(), _event()) for _ in range(51)]
    synchronize(device)
    for begin, end in pairs:
        begin.record()
        end.record()
    synchronize(device)
    return sorted(_ns(a, b) for a, b in pairs)[25]
