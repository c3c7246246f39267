"""Under the clock of the process that it runs in: a step's warm-up, its timer, its samples and its memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from rung.engine.disturbed import graphs_compiled
from rung.hardware.device import Device, memory_in_use, peak_memory, shared_memory, synchronize
from rung.hardware.ranks import Ranks
from rung.hardware.sensors import Sensor, identity, joules, sensor_for
from rung.measure import MINIMUM_RUNS, warm_up
from rung.measure.as_launched import Events
from rung.measure.core_time import CoreTime, core_time
from rung.measure.timers import Timer, choose
from rung.records.measured import Environment, Seconds
from rung.records.record import Part


class Opened(Part, kw_only=True):
    """What is opened. samples, tokens: of a step, where they are known; steps: how many of them are timed at the least."""

    name: str
    mode: str
    samples: int | float | None
    tokens: int | float | None
    steps: int
    environment: Environment
    parallel: str = "none"  # how the ranks of a job do it
    too_late: list[str] = msgspec.field(default_factory=list)  # variables that it set, and this fork had read before
    gpu_bytes: int = 0  # of a GPU's memory, that loading it took: by a target which makes its model then


class Warmed(Part, kw_only=True):
    """What was seen until it was steady, by this version or by that of another revision. first_run_seconds: of the run before; memory:
    bytes at most, by kind; doubts: why the time may not be the one that is meant; original: elements of inputs that a recipe leaves
    alone; applied: what the rungs did, which these ask (`rung.rungs.Evidence`); apart: what is wrong with how ranks train together; forked:
    by a process that had imported torch; loops: calls of a plain function in a sample, 0 where that is not known."""

    first_run_seconds: Seconds
    runs: int
    steady: bool
    memory: dict[str, int]
    doubts: list[str] = msgspec.field(default_factory=list)
    original: int | None = None
    applied: dict[str, Any] = msgspec.field(default_factory=dict)
    apart: list[str] = msgspec.field(default_factory=list)
    forked: bool = False
    loops: int = 0


class TimedBlock(Part, kw_only=True):
    """Samples that were taken in a row, ns a step. outside: the share of the block's time that lies outside of them; calls: steps that they
    are of; compiled: graphs meanwhile; cores: on a CPU, what its threads got of them, ns."""

    samples: list[int | float]
    outside: float
    calls: int
    compiled: int = 0  # another revision's worker may not know of it, nor of the cores
    cores: CoreTime | None = None


class Occupied(Part, kw_only=True):
    """Bytes of the GPU in use: by all processes together, and by the allocator of the one that answers."""

    used: int
    held: int


class Drawn(Part, kw_only=True):
    """What a GPU took during a block. clock: MHz of its core when that had ended, null where no sensor says it."""

    joules: float
    seconds: float
    clock: float | None = None


def loops_in_step(estimates: Sequence[float], loops: Sequence[int]) -> int:
    """How many calls a sample of each side is to be, so that sides of about one speed have as many: the mean of fewer calls scatters more. 0
    where they differ too much for that, or where it is not known of one. estimates: nanoseconds of a call, by side."""
    return max(loops) if min(loops) > 0 and max(estimates) < 2 * min(estimates) else 0


class Timed:
    """What can be asked of a workload's step and of a plain function alike. Every method takes and returns plain values,
    because it may be called through a pipe.

    device: where it runs. loops: how many steps a `call` is, so that it is long enough for the clock.
    """

    device: Device
    loops = 1
    _estimate = 0.0  # nanoseconds of a step, once warm
    _timer: Timer | None = None
    _launched = 1.0  # share of the last step that was waited for, after which the host had launched it all

    @property
    def ranks(self) -> Ranks:
        """Which of several processes this is. They take the same steps, so each count of steps is the same on all of them."""
        return Ranks.here

    def call(self) -> None:
        """What is timed; it may still run when this returns."""
        raise NotImplementedError

    def _until_steady(self, seconds: float, first: float) -> dict[str, Any]:
        """Runs until it is steady, or for `seconds`. first: seconds of the first run, which is reported apart. `launching` is the share of
        a step after which the host had launched it all: where it is small, the GPU waits for no launch."""
        until = time.perf_counter() + seconds
        launching: list[float] = []

        def clocked() -> int:
            took = self._clocked()
            launching.append(self._launched)
            return took

        samples, steady = warm_up(clocked, lambda: self.ranks.most([until - time.perf_counter()])[0])
        begin = steady or MINIMUM_RUNS - 1
        self._estimate = statistics.median(samples[begin:])
        return {
            "first_run_seconds": first,
            "runs": len(samples) * self.loops + 1,
            "samples": samples,
            "steady": steady is not None,
            "launching": statistics.median(launching[begin:]),
            "memory": peak_memory(self.device),
            "doubts": [],
        }

    def _clocked(self) -> int:
        begin = time.perf_counter_ns()
        self.call()
        launched = time.perf_counter_ns() - begin
        synchronize(self.device)
        took = time.perf_counter_ns() - begin
        self._launched = launched / max(took, 1)
        return round(self.ranks.most([took / self.loops])[0])

    def estimate(self) -> float:
        """Nanoseconds of a step, once warm."""
        return self._estimate

    def timer(self, wanted: str, cold: bool) -> dict[str, Any]:
        """Chooses how `block` times, says how, and which GPU it is."""
        if self.ranks.world > 1 and self.device.is_gpu and wanted == "auto":
            wanted = "events"  # what others choose by the time that they see may not be the same on all ranks
        self._timer, facts = choose(self.call, self.device, wanted, cold, self._estimate * self.loops)
        self._graphs = graphs_compiled()
        return {**facts, "sample_ns": facts["sample_ns"] / self.loops, "gpu": identity(self.device)}

    def block(self, count: int, drawn: bool = False) -> dict[str, Any]:
        """`count` samples, nanoseconds a step, each the mean of `loops`; where no timer was chosen, back to back. On a CPU with what its
        threads got of the cores for all of them: `ran` and `waited`, nanoseconds (`rung.measure.core_time`).
        drawn: with what the GPU took, for which its sensors are asked before and after."""
        before = graphs_compiled()
        began = None if self.device.is_gpu else core_time()
        sensor = self._sensor if drawn else None
        looked = sensor.read() if sensor else None  # before they meet, or the others would wait for it
        self.ranks.meet()
        block = (self._timer or Events(self.call, self.device)).block(max(1, count // self.loops))
        ended = core_time() if began else None
        got = ended.since(began) if began and ended else None
        samples = block.samples if self.loops == 1 else [t / self.loops for t in block.samples]
        compiled = graphs_compiled() - before
        taken = {
            "samples": samples,
            "outside": block.outside,
            "calls": block.calls * self.loops,
            "compiled": compiled,
            "cores": {"ran": got.ran, "waited": got.waited} if got else None,
        }
        if sensor and looked:
            last = sensor.read()
            if (spent := joules(looked, last)) is not None:
                taken["drawn"] = {"joules": spent, "seconds": last.at - looked.at, "clock": last.core}
        return taken

    @cached_property
    def _sensor(self) -> Sensor | None:
        return sensor_for(identity(self.device))

    def disturbances(self) -> dict[str, Any]:
        """What changed while it was timed: graphs compiled since the timer was chosen."""
        return {"compiled": graphs_compiled() - self._graphs}

    def doubts(self) -> list[str]:
        """Why the time may not be the one that is meant, in sentences."""
        return []

    def occupied(self) -> dict[str, int]:
        """How much of the GPU is in use, by whom ever."""
        used, held = shared_memory(self.device)
        return {"used": used, "held": held}

    def in_use(self) -> int:
        """Bytes in use now: of torch's allocator on a GPU, of the process on a CPU."""
        return memory_in_use(self.device)

    def memory(self) -> dict[str, int]:
        return peak_memory(self.device)
