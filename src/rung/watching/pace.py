"""How long the steps of a training loop take, and what of each this rank waited for the exchange of gradients: without waiting for a GPU.

On a GPU the marks are events, which the GPU passes when it has done what was launched before, and which are looked at later. On a CPU
they are readings of the clock.

Under DistributedDataParallel all ranks' steps look alike, because each waits for the slowest. What a rank took by itself is the step
without that wait. The wait begins when the last gradient of this rank is computed, and ends when the averages are there. DDP waits in a
callback that autograd calls after a backward. One callback of ours is queued before DDP's, by a gradient that comes earlier than the last.
It queues another, which comes after DDP's. Nothing of what DDP does is replaced.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from rung.hardware.device import Device

# Nanoseconds of the loop that it takes to time one step, at most (benchmarks/measurement/watch.py).
HOST_COST_NS = 100_000
GPU_COST_NS = 300_000
SHARE = 0.005  # of the time that this may take: of short steps one in several is timed
FURTHEST = 200  # steps from one that is timed to the next
PENDING = 256  # steps that a GPU may be behind; of those before, no time is known
KEPT = 10_000  # times that wait to be taken


class Taken(NamedTuple):
    """Nanoseconds of one step. exchange: None where it is not known."""

    step: float
    exchange: float | None


class Clock(Protocol):
    """Marks in time. cost_ns: what it takes to time one step by them, at most."""

    cost_ns: float

    def mark(self) -> Any:
        """Now, in the order of what this device does; None where that cannot be marked."""

    def passed(self, mark: Any) -> bool: ...

    def between(self, begin: Any, end: Any) -> float:
        """Nanoseconds."""


class HostClock:
    cost_ns: float = HOST_COST_NS

    def mark(self) -> int:
        return time.perf_counter_ns()

    def passed(self, mark: int) -> bool:
        return True

    def between(self, begin: int, end: int) -> float:
        return end - begin


class GpuClock:
    cost_ns: float = GPU_COST_NS

    def __init__(self, index: int) -> None:
        self._index = index

    def mark(self) -> torch.cuda.Event | None:
        if (
            torch.cuda.is_current_stream_capturing()
        ):  # a graph takes no such event, and asking for one would end its capture
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._index))
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) * 1e6


class _Step(NamedTuple):
    begin: Any
    end: Any
    waits: list[tuple[Any, Any]]


class Pace:
    """Times of steps. `step` is called when one has ended, in the training loop's thread; `take` by any thread."""

    def __init__(self, device: Device, averaged: torch.nn.Module | None) -> None:
        """averaged: the model whose gradients DDP averages; None: no exchange is timed."""
        self._clock: Clock = GpuClock(device.index) if device.is_gpu else HostClock()
        self._taken: deque[Taken] = deque(maxlen=KEPT)
        self._pending: deque[_Step] = deque(maxlen=PENDING)
        self._begin: Any = None  # of the step that is being timed
        self._count, self._apart = 0, 1  # one step in so many is timed
        self._waits: list[tuple[Any, Any]] = []
        self._queued = self._broken = False
        self._error: Exception | None = None  # of a call within a backward, where it would end the training
        self.cost_ns = 0  # what all this took in the training loop
        self._chosen = _chosen(averaged) if averaged is not None else []
        self._hooks: list[Any] = []
        self._hook()

    def step(self) -> None:
        """Raises what has failed, here or in the backward before: of the exchange of gradients nothing is known from then on."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        begun = time.perf_counter_ns()
        self._count += 1
        next_is_timed = self._count % self._apart == 0
        if self._begin is not None or next_is_timed:
            mark = self._clock.mark()
            if self._begin is not None and mark is not None:
                self._pending.append(_Step(self._begin, mark, self._waits))
            self._begin = mark if next_is_timed else None
            self._waits, self._queued = [], False
            if mark is not None:
                self._look()
            if next_is_timed != bool(self._hooks):
                self._hook() if next_is_timed else self.close()
        self.cost_ns += time.perf_counter_ns() - begun

    def take(self) -> list[Taken]:
        """The steps whose times have become known since the last call."""
        found = []
        while self._taken:
            found.append(self._taken.popleft())
        return found

    def _hook(self) -> None:
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_is_there) for parameter in self._chosen
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _look(self) -> None:
        while self._pending and self._clock.passed(self._pending[0].end):
            one = self._pending.popleft()
            took = self._clock.between(one.begin, one.end)
            self._apart = min(FURTHEST, max(1, math.ceil(self._clock.cost_ns / (SHARE * max(1.0, took)))))
            waited = sum(self._clock.between(begin, end) for begin, end in one.waits) if one.waits else None
            self._taken.append(Taken(took, waited))

    def _gradient_is_there(self, parameter: object) -> None:
        if self._queued or self._broken:
            return
        begun = time.perf_counter_ns()
        self._queued = True
        try:
            _queue(self._before_the_exchange_is_awaited)
        except RuntimeError:  # what runs this backward takes no such calls, as compiled autograd
            self._broken = True
        self.cost_ns += time.perf_counter_ns() - begun

    def _before_the_exchange_is_awaited(self) -> None:
        begun = time.perf_counter_ns()
        self._queued = False
        try:
            begin = self._clock.mark()
            _queue(lambda: self._exchanged(begin))
        except Exception as error:
            self._broken, self._error = True, error
        self.cost_ns += time.perf_counter_ns() - begun

    def _exchanged(self, begin: Any) -> None:
        begun = time.perf_counter_ns()
        try:
            end = self._clock.mark()
            if begin is not None and end is not None:
                self._waits.append((begin, end))
        except Exception as error:
            self._broken, self._error = True, error
        self.cost_ns += time.perf_counter_ns() - begun


def _queue(call: Callable[[], None]) -> None:
    """Has autograd call it after the backward that runs now, in the order in which such calls were queued. FSDP does it so, too."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _chosen(model: torch.nn.Module) -> list[torch.Tensor]:
    """The first and the last parameter that is trained: a model may have one that a backward does not reach."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list({id(parameter): parameter for parameter in (*trained[:1], *trained[-1:])}.values())


def data_parallel(model: torch.nn.Module) -> DistributedDataParallel | None:
    """What averages gradients of it, if anything does."""
    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)
