"""torch.profiler: a few steady steps into a gzipped Chrome trace."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rung.hardware.device import Device, synchronize
from rung.trace.marks import END_OF_STEP


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


class Recorder:
    """torch.profiler for steps that others run: `start()`, then `step()` after each, then `stop()`.

    `written`: the files of the rounds so far. Each appears whole or not at all; those after the first are named `….2.json.gz` and so on.
    Stopped within recorded steps, it writes those that it has.
    """

    def __init__(self, path: str, device: Device, options: Options) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        self.written: list[str] = []
        self._path, self._several = path, options.repeat > 1
        self._profile = profile(
            activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.is_gpu else []),
            schedule=schedule(wait=options.wait, warmup=options.warm, active=options.active, repeat=options.repeat),
            on_trace_ready=self._save,
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.stacks,
            with_modules=options.modules,
            with_flops=options.flops,
        )

    def start(self) -> None:
        self._profile.start()

    def step(self) -> None:
        if (
            not self._several
        ):  # in a training loop: each change of the filters has Python show warnings again that it shows once
            self._profile.step()
            return
        with warnings.catch_warnings():
            # Each round is written before the next. Told to keep all (acc_events), torch makes a Python object of every event, which takes most
            # of the time that a recording takes (benchmarks/profilers/recording.py).
            warnings.filterwarnings("ignore", ".*clears events")
            self._profile.step()

    def stop(self) -> None:
        self._profile.stop()

    def _save(self, profiler: Any) -> None:
        stem = self._path.removesuffix(".json.gz")
        final = self._path if not self.written else f"{stem}.{len(self.written) + 1}.json.gz"
        plain, partial = f"{stem}.partial.json", f"{stem}.partial.json.gz"
        try:
            profiler.export_chrome_trace(plain)
            # Torch packs line by line, which takes most of the rest.
            with open(plain, "rb") as whole, gzip.open(partial, "wb", compresslevel=4) as packed:
                shutil.copyfileobj(whole, packed, 1 << 20)
            os.replace(partial, final)
        finally:
            for left in (plain, partial):
                with contextlib.suppress(OSError):
                    os.remove(left)
        self.written.append(final)


def record(
    step: Callable[[], object], path: str, steps: int, device: Device, options: Options | None = None
) -> list[int]:
    """Records `steps` calls of `step`, after those that the profiler itself warms up on; of `options`, the rest.

    The files are those of a Recorder. Returns the nanoseconds of each recorded step, the profiler's own work in them included.
    """
    how = replace(options or Options(), active=steps)
    recorder = Recorder(path, device, how)
    recorded: list[int] = []
    synchronize(device)
    recorder.start()
    try:
        for number in range(how.total):
            begin = time.perf_counter_ns()
            step()
            _end(device)
            taken = time.perf_counter_ns() - begin
            if number % (how.wait + how.warm + how.active) >= how.wait + how.warm:
                recorded.append(taken)
            recorder.step()
    finally:
        recorder.stop()
    return recorded


def _end(device: Device) -> None:
    """Waits for the step's work, so marked that no analysis takes this for a wait of the program's."""
    if not device.is_gpu:
        return
    from torch.profiler import record_function

    with record_function(END_OF_STEP):
        synchronize(device)


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
