"""A plain function under the clock: what a worker serves, or this process holds, where no workload is given."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rung.errors import UsageError
from rung.hardware import Device, environment, pick
from rung.hardware.device import cpu, memory_in_use, peak_memory, synchronize
from rung.hardware.sensors import identity
from rung.ladder.disturbed import graphs_compiled
from rung.ladder.work import roof
from rung.measure import MINIMUM_RUNS, warm_up
from rung.measure.as_launched import Events
from rung.measure.timers import Timer, choose
from rung.workload.load import call_of

SHORT = (
    20_000  # ns: what a CPU does in less is called several times a sample, so that reading the clock is < 0.5 % of it
)


class Function:
    """Answers as `rung.ladder.candidate.Candidate` does, as far as measuring goes. One step is one call."""

    _timer: Timer | None = None

    def __init__(self, call: Callable[[], object] | None = None, name: str = "", device: str | None = None) -> None:
        self.name = name
        self.loops = 1
        if call:
            self._call, self._wanted = call, device

    def open(
        self,
        target: str = "",
        options: dict[str, str] | None = None,
        rungs: Sequence[str] = (),
        device: str | None = None,
    ) -> dict[str, Any]:
        """Loads the function, unless it was given, and calls it once: only then it shows whether it uses a GPU."""
        if rungs:
            raise UsageError(f"{target} is called as a plain function, which no rung can change; leave the rungs out.")
        if target:
            self.name, self._wanted = target, device
            self._call = call_of(target, options or {})
        begin = time.perf_counter()
        self._call()
        self.device = self._used()
        synchronize(self.device)
        self._first = time.perf_counter() - begin
        return {"name": self.name, "mode": "call", "samples": None, "tokens": None, "steps": 10,
                "environment": environment(self.device)}  # fmt: skip

    def _used(self) -> Device:
        torch = sys.modules.get("torch")
        if self._wanted:
            return pick(self._wanted)
        return pick(f"cuda:{torch.cuda.current_device()}") if torch and torch.cuda.is_initialized() else cpu()

    def first(self) -> float:
        return self._first

    def warm(self, seconds: float) -> dict[str, Any]:
        """Runs until it is steady, or for `seconds`."""
        until = time.perf_counter() + seconds
        if not self.device.is_gpu:
            rough = min(self._timed() for _ in range(MINIMUM_RUNS))
            self.loops = max(1, round(SHORT / max(rough, 1))) if rough < SHORT / 2 else 1
        samples, steady = warm_up(self._timed, lambda: until - time.perf_counter())
        self._estimate = statistics.median(samples[steady or MINIMUM_RUNS - 1 :])
        return {
            "first_run_seconds": self._first,
            "runs": len(samples) * self.loops + 1,
            "samples": samples,
            "steady": steady is not None,
            "memory": peak_memory(self.device),
        }

    def estimate(self) -> float:
        """Nanoseconds that a sample takes, once warm. On a GPU the timer is chosen for it, unless it was: a kernel may be far shorter
        than what the host's clock sees of it, and graphs are captured once."""
        if self.device.is_gpu and not self._timer:
            self._estimate = self.timer("auto", False)["sample_ns"]
        return self._estimate

    def _timed(self) -> int:
        begin = time.perf_counter_ns()
        self._step()
        synchronize(self.device)
        return round((time.perf_counter_ns() - begin) / self.loops)

    def _step(self) -> None:
        call = self._call
        for _ in range(self.loops):
            call()

    def timer(self, wanted: str, cold: bool) -> dict[str, Any]:
        """Chooses how `block` times, says how, and which GPU it is."""
        if cold and self.loops > 1:
            raise UsageError(
                f"{self.name} is too short for a CPU's clock to time a single cold call; leave --cold out."
            )
        self._timer, facts = choose(self._step, self.device, wanted, cold)
        self._graphs = graphs_compiled()
        return {**facts, "sample_ns": facts["sample_ns"] / self.loops, "gpu": identity(self.device)}

    def disturbances(self) -> dict[str, Any]:
        return {"compiled": graphs_compiled() - self._graphs}

    def block(self, count: int) -> dict[str, Any]:
        """`count` samples: nanoseconds of one call, the mean of several where it is short for a CPU's clock."""
        timer = self._timer or Events(self._step, self.device)
        block = timer.block(max(1, count // self.loops))
        samples = block.samples if self.loops == 1 else [t / self.loops for t in block.samples]
        return {"samples": samples, "outside": block.outside, "calls": block.calls * self.loops}

    def in_use(self) -> int:
        return memory_in_use(self.device)

    def memory(self) -> dict[str, int]:
        return peak_memory(self.device)

    def work(self, flops_in: str | None = None) -> dict[str, Any]:
        """What the chip could do; what a plain function does is not counted."""
        return roof(self.device, flops_in)


class Here:
    """A served object in this process, called as a worker is."""

    def __init__(self, served: Any) -> None:
        self._served = served

    def call(self, method: str, deadline: float, **arguments: Any) -> Any:
        return getattr(self._served, method)(**arguments)


def named(call: Callable[[], object]) -> str:
    """What a report calls a function."""
    inner = call.func if isinstance(call, partial) else call
    return str(getattr(inner, "__qualname__", type(inner).__name__)).replace("<locals>.", "")
