"""torch.profiler: a few steady steps into a gzipped Chrome trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rung.hardware.device import Device, synchronize


@dataclass(frozen=True)
class Options:
    """What torch.profiler is told. wait: steps before each round that are not recorded; warm: steps that it records and
    throws away, for its own start-up; active: recorded steps; repeat: rounds, each a trace of its own.

    Shapes cost little; stacks and modules slow the host several times over; memory and flops lie between.
    """

    active: int = 3
    wait: int = 0
    warm: int = 1
    repeat: int = 1
    shapes: bool = True
    stacks: bool = False
    memory: bool = False
    modules: bool = False
    flops: bool = False

    @property
    def total(self) -> int:
        return (self.wait + self.warm + self.active) * self.repeat

    def says(self) -> str:
        kinds = ["operators", "kernels"]
        kinds += [name for name in ("shapes", "stacks", "memory", "modules", "flops") if getattr(self, name)]
        rounds = f", {self.repeat} times" if self.repeat > 1 else ""
        return f"{', '.join(kinds)} of {self.active} steps{rounds}"


def record(
    step: Callable[[], object], path: str, steps: int, device: Device, options: Options | None = None
) -> list[int]:
    """Records `steps` calls of `step`, after those that the profiler itself warms up on; of `options`, the rest.

    The file appears whole or not at all; of several rounds, those after the first are named `….2.json.gz` and so on.
    Returns the nanoseconds of each recorded step, the profiler's own work in them included.
    """
    from torch.profiler import ProfilerActivity, profile, schedule

    how = options or Options()
    how = replace(how, active=steps)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.is_gpu else [])
    written: list[str] = []

    def save(profiler: Any) -> None:
        stem = path.removesuffix(".json.gz")
        final = path if not written else f"{stem}.{len(written) + 1}.json.gz"
        partial = stem + ".partial.json.gz"
        profiler.export_chrome_trace(partial)
        os.replace(partial, final)
        written.append(final)

    recorded: list[int] = []
    synchronize(device)
    with profile(
        activities=activities,
        schedule=schedule(wait=how.wait, warmup=how.warm, active=how.active, repeat=how.repeat),
        on_trace_ready=save,
        record_shapes=how.shapes,
        profile_memory=how.memory,
        with_stack=how.stacks,
        with_modules=how.modules,
        with_flops=how.flops,
        acc_events=True,
    ) as profiler:
        for number in range(how.total):
            begin = time.perf_counter_ns()
            step()
            synchronize(device)
            taken = time.perf_counter_ns() - begin
            if number % (how.wait + how.warm + how.active) >= how.wait + how.warm:
                recorded.append(taken)
            profiler.step()
    return recorded


def unrecorded(step: Callable[[], object], steps: int, device: Device, seconds: float = 0.0) -> list[int]:
    """Nanoseconds of each of `steps` calls, taken as `record` takes them, without a profiler; of more where these take
    less than `seconds` together."""
    found: list[int] = []
    synchronize(device)
    while len(found) < steps or sum(found) < seconds * 1e9:
        begin = time.perf_counter_ns()
        step()
        synchronize(device)
        found.append(time.perf_counter_ns() - begin)
    return found
