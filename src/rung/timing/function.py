"""A plain function under the clock: what a worker serves, or this process holds, where no workload is given."""

from __future__ import annotations

import inspect
import sys
import time
import types
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeGuard

from rung.errors import UsageError
from rung.hardware import Device, environment, pick
from rung.hardware.device import cpu, synchronize
from rung.measure import MINIMUM_RUNS
from rung.measure.clock import leaves_idle
from rung.measure.tampered import refuse_tampered
from rung.measure.timers import SLOW
from rung.records.record import plain
from rung.timing.timed import Timed
from rung.timing.work import work_with_peaks
from rung.workload.load import call_of

SHORT = (
    20_000  # ns: what a CPU does in less is called several times a sample, so that reading the clock is < 0.5 % of it
)
FITTED = 3  # times at most that the calls in a sample are counted anew: each finds a shorter one


class Function(Timed):
    """Answers as `rung.ladder.candidate.Candidate` does, as far as measuring goes. One step is one call."""

    def __init__(self, call: Callable[[], object] | None = None, name: str = "", device: str | None = None) -> None:
        self.name = name
        if call:
            self._call, self._wanted = call, device

    def open(
        self,
        target: str = "",
        options: dict[str, str] | None = None,
        rungs: Sequence[str] = (),
        device: str | None = None,
    ) -> dict[str, Any]:
        """Loads the function, unless it was given, and calls it once: only then it shows whether it uses a GPU. Where a target returns a
        function without arguments, that one is timed."""
        if rungs:
            raise UsageError(f"{target} is called as a plain function, which no rung can change; leave the rungs out.")
        if target:
            self.name, self._wanted = target, device
            self._call = call_of(target, options or {})
        begin = time.perf_counter()
        returned = self._call()
        if target and _takes_nothing(returned):  # it made its inputs once, and returns what is to be timed
            self._call = returned
            returned = self._call()
        if lazy := not_done_yet(returned):
            raise UsageError(
                f"{self.name} returns {lazy}, which has done nothing yet; give a function that runs it to its end."
            )
        if callable(returned):
            raise UsageError(
                f"{self.name} returns a {type(returned).__name__}, which can be called itself and was not; give a function "
                "that calls it, or to time how it is made, one that returns nothing."
            )
        self.device = self._where()
        synchronize(self.device)
        self._first = time.perf_counter() - begin
        if self._uses_no_gpu():
            self.device = cpu()
        refuse_tampered(self.name)
        return {"name": self.name, "mode": "call", "samples": None, "tokens": None, "steps": 10,
                "environment": environment(self.device)}  # fmt: skip

    def _where(self) -> Device:
        torch = sys.modules.get("torch")
        if self._wanted:
            return pick(self._wanted)
        return pick(f"cuda:{torch.cuda.current_device()}") if torch and torch.cuda.is_initialized() else cpu()

    def _uses_no_gpu(self) -> bool:
        """Whether only others in this process use the GPU. Of a slow function that is not asked: the host's clock and events agree on it."""
        unknown = self.device.is_gpu and not self._wanted and self._first * 1e9 < SLOW
        return unknown and leaves_idle(self._call, self.device)

    def first(self) -> float:
        return self._first

    def warm(self, seconds: float) -> dict[str, Any]:
        """Runs until it is steady, or for `seconds`."""
        begin = time.perf_counter()
        if not self.device.is_gpu:
            rough = self._clocked()
            if rough < SLOW:
                rough = min(rough, *(self._clocked() for _ in range(MINIMUM_RUNS - 1)))
            self.loops = max(1, round(SHORT / max(rough, 1))) if rough < SHORT / 2 else 1
        found = self._until_steady(seconds - (time.perf_counter() - begin), self._first)
        for _ in range(FITTED if not self.device.is_gpu else 0):
            # Calls that were slower than all later ones, the first ones or beside other work, made samples too short for the clock.
            if self.loops * self._estimate >= SHORT / 2:
                break
            self.use_loops(max(1, round(SHORT / max(self._estimate, 1))))
            found["runs"] += MINIMUM_RUNS * self.loops
        return {**found, "loops": self.loops}

    def use_loops(self, loops: int) -> None:
        """Sets how many calls a sample is, and estimates anew what one takes."""
        self.loops = loops
        self._estimate = min(self._clocked() for _ in range(MINIMUM_RUNS))

    def call(self) -> None:
        call = self._call
        for _ in range(self.loops):
            call()

    def block(self, count: int, drawn: bool = False) -> dict[str, Any]:
        found = super().block(count, drawn)
        refuse_tampered(self.name)
        return found

    def timer(self, wanted: str, cold: bool) -> dict[str, Any]:
        if cold and self.loops > 1:
            raise UsageError(
                f"{self.name} is too short for a CPU's clock to time a single cold call; leave --cold out."
            )
        return super().timer(wanted, cold)

    def work(self, flops_in: str | None = None) -> dict[str, Any]:
        """What the chip could do; what a plain function does is not counted."""
        return plain(work_with_peaks(self.device, flops_in))


def _takes_nothing(returned: object) -> TypeGuard[Callable[[], object]]:
    """Whether it is a function that can be called as it is; a class or a module is none."""
    if not isinstance(returned, (types.FunctionType, types.MethodType, partial)):
        return False
    try:
        inspect.signature(returned).bind()
    except (TypeError, ValueError):
        return False
    return True


def not_done_yet(returned: object) -> str:
    """What a function returned that works only when it is asked for its results; empty where it has worked. An iterator over what is
    there already, a file among them, counts as work that was done."""
    if inspect.isasyncgen(returned):
        return "an asynchronous generator"
    if inspect.isawaitable(returned) or isinstance(returned, (Generator, map, filter, zip)):
        return f"a {type(returned).__name__}"  # a coroutine among them
    return ""


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
