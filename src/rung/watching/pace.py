"""How long the steps of a training loop take, and what of each this rank waited for the exchange of gradients: without waiting for a GPU.

On a GPU the marks are events, which the GPU passes when it has done what was launched before, and which are looked at later. On a CPU
they are readings of the clock.

Under DistributedDataParallel all ranks' steps look alike, because each waits for the slowest. What a rank took by itself is the step
without that wait. The wait begins when the last gradient of this rank is computed, and ends when the averages are there. DDP waits in a
callback that autograd calls after a backward. One callback of ours is queued before DDP's, by a gradient that comes earlier than the last.
It queues another, which comes after DDP's. Nothing of what DDP does is replaced.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from rung.hardware.device import Device

PENDING = 256  # steps that a GPU may be behind; of those before, no time is known
KEPT = 10_000  # times that wait to be taken


class Taken(NamedTuple):
    """Nanoseconds of one step. exchange: None where it is not known."""

    step: float
    exchange: float | None


class Clock(Protocol):
    """Marks in time."""

    def mark(self) -> Any:
        """Now, in the order of what this device does; None where that cannot be marked."""

    def passed(self, mark: Any) -> bool: ...

    def between(self, begin: Any, end: Any) -> float:
        """Nanoseconds."""


class HostClock:
    def mark(self) -> int:
        return time.perf_counter_ns()

    def passed(self, mark: int) -> bool:
        return True

    def between(self, begin: int, end: int) -> float:
        return end - begin


class GpuClock:
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
        self._last: Any = None
        self._waits: list[tuple[Any, Any]] = []
        self._queued = self._broken = False
        self.cost_ns = 0  # what all this took in the training loop
        self._hooks = _hooked(averaged, self._gradient_is_there) if averaged is not None else []

    def step(self) -> None:
        begun = time.perf_counter_ns()
        mark = self._clock.mark()
        if mark is None:
            self._last = None
        else:
            if self._last is not None:
                self._pending.append(_Step(self._last, mark, self._waits))
            self._last = mark
            self._look()
        self._waits, self._queued = [], False
        self.cost_ns += time.perf_counter_ns() - begun

    def take(self) -> list[Taken]:
        """The steps whose times have become known since the last call."""
        found = []
        while self._taken:
            found.append(self._taken.popleft())
        return found

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _look(self) -> None:
        while self._pending and self._clock.passed(self._pending[0].end):
            one = self._pending.popleft()
            waited = sum(self._clock.between(begin, end) for begin, end in one.waits) if one.waits else None
            self._taken.append(Taken(self._clock.between(one.begin, one.end), waited))

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
        begin = self._clock.mark()
        _queue(lambda: self._exchanged(begin))
        self.cost_ns += time.perf_counter_ns() - begun

    def _exchanged(self, begin: Any) -> None:
        begun = time.perf_counter_ns()
        end = self._clock.mark()
        if begin is not None and end is not None:
            self._waits.append((begin, end))
        self.cost_ns += time.perf_counter_ns() - begun


def _queue(call: Callable[[], None]) -> None:
    """Has autograd call it after the backward that runs now, in the order in which such calls were queued. FSDP does it so, too."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _hooked(model: torch.nn.Module, hook: Callable[[torch.Tensor], None]) -> list[Any]:
    """On the first and the last parameter: a model may have one that a backward does not reach."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    chosen = {id(parameter): parameter for parameter in (*trained[:1], *trained[-1:])}
    return [parameter.register_post_accumulate_grad_hook(hook) for parameter in chosen.values()]


def is_data_parallel(model: torch.nn.Module) -> bool:
    """Whether DistributedDataParallel averages gradients of it."""
    if not torch.distributed.is_available():
        return False
    from torch.nn.parallel import DistributedDataParallel

    return any(isinstance(module, DistributedDataParallel) for module in model.modules())
