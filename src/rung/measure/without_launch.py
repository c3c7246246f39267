"""What the GPU needs for a step, without what the host needs to launch it.

A pair of events around one short call measures its launch: on an H100 it says 15.9 us of a kernel that takes one.
Only what the GPU finds waiting for it, without the host, shows what the GPU needs: calls recorded in a graph (the
slope between n and 2 n of them, so that a graph's own start cancels), or queued up behind a kernel that spins.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from rung.errors import UsageError
from rung.hardware.device import Device, recording, synchronize
from rung.measure.clock import Block, Step, elapsed, empty_pair, event, launch, repeat, spin

GRAPH_NS = 1_000_000  # of work in the smaller graph: its ends are then far below 1 % of it
MOST_CALLS = 500  # in the smaller graph; graphs of many thousand nodes are known to crash some drivers
LEAST_NS = 1.0  # of all calls of a graph together: the clock tells no less apart
QUEUE = 200  # calls behind a blocker: the launch queue of a GPU holds about a thousand kernels


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
            self._small = recorded(self._step, lambda: repeat(n, flushes), self._device)
            self._large = recorded(self._step, lambda: repeat(n, flushes, self._step), self._device)
        else:
            self._small = recorded(self._step, lambda: repeat(n, self._step), self._device)
            self._large = recorded(self._step, lambda: repeat(2 * n, self._step), self._device)

    def _flush_ns(self) -> float:
        begin, end = event(), event()
        begin.record()
        self._small.replay()
        end.record()
        synchronize(self._device)
        return elapsed(begin, end) / self._calls

    def block(self, count: int) -> Block:
        synchronize(self._device)
        # Blocked until all is queued up: the host's pace must not show between two graphs.
        marks = [event() for _ in range(2 * count + 1)]
        spin(self._device, count * 50_000)
        self._small.replay()
        marks[0].record()
        for k in range(count):
            # Alternating the order, so that a drift of the clock has no side.
            pair = (self._small, self._large) if k % 2 == 0 else (self._large, self._small)
            for mark, graph in zip(marks[2 * k + 1 : 2 * k + 3], pair, strict=True):
                graph.replay()
                mark.record()
        synchronize(self._device)
        spans = [elapsed(a, b) for a, b in pairwise(marks)]
        more = [(spans[2 * k + 1] - spans[2 * k]) * (1 if k % 2 == 0 else -1) for k in range(count)]
        # Calls that launch nothing leave nothing to measure; a time above zero can still be divided by.
        samples = [max(LEAST_NS, difference) / self._calls for difference in more]
        return Block(samples, 0.0, (3 * count + 1) * self._calls)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "calls": self._calls,
            "launch_ns": launch(self._step, self._device),
            "empty_pair_ns": empty_pair(self._device),
        }


def recorded(step: Step, calls: Callable[[], None], device: Device) -> Any:
    """A graph of what `calls` launches. step: what is called in them. Raises UsageError where that cannot be captured."""
    import torch

    side = torch.cuda.Stream(device.index)
    side.wait_stream(torch.cuda.current_stream(device.index))
    try:
        with torch.cuda.stream(side):
            for _ in range(3):  # what a library does at its first call on a stream cannot be captured
                step()
        synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with recording(graph, side, device):
            calls()
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error) else type(error).__name__
        raise UsageError(
            f"the step cannot be recorded as a graph ({type(error).__name__}: {reason}); use --timer events."
        ) from error
    return graph


class Batch:
    """Many calls in one pair of events, queued up behind a kernel that spins until all of them are launched."""

    name = "batch"

    def __init__(self, step: Step, device: Device) -> None:
        self._step, self._device = step, device
        self._launch = launch(step, device)
        self._calls = int(max(1, min(QUEUE, 20e6 / self._launch)))

    def block(self, count: int) -> Block:
        samples: list[float] = []
        for _ in range(count):
            begin, end = event(), event()
            synchronize(self._device)
            spin(self._device, 1.5 * self._launch * self._calls)
            begin.record()
            repeat(self._calls, self._step)
            end.record()
            synchronize(self._device)
            samples.append(elapsed(begin, end) / self._calls)
        return Block(samples, 0.0, count * self._calls)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "calls": self._calls,
            "launch_ns": self._launch,
            "empty_pair_ns": empty_pair(self._device),
        }
