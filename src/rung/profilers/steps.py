"""A few steady steps of a workload, for a profiler to see: `python launch/start.py rung.profilers.steps REQUEST`; one process a rank of a job.

REQUEST is a StepsRequest as JSON. Steps are marked as torch.profiler marks them, `ProfilerStep#N`, through roctx or NVTX; on NVIDIA the
recording is switched on for them alone. Their times, a Times, go to the file that $RUNG_STEPS names.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from rung.hardware.ranks import Ranks
from rung.launch.gather import HERE, Writing, writing
from rung.launch.rank import placed
from rung.profilers import clocks
from rung.profilers.torch_profiler import Options
from rung.trace.clocks import NAME, Compared

REPORT = "RUNG_STEPS"


class TorchRecording(msgspec.Struct):
    """What torch.profiler is told, and the trace that it writes."""

    path: str
    options: Options


class Recorded(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which ranks of a job are recorded: these, or every so many from 0 on. All of them take the steps."""

    ranks: list[int] = []
    every: int = 1

    def has(self, rank: int) -> bool:
        return rank in self.ranks if self.ranks else rank % self.every == 0


class StepsRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """warm, steps: how many before those that are recorded, and of these; torch: where torch.profiler records; seconds: that the
    unrecorded steps are to take, for sensors that are read beside them; recorded: of several ranks, where this process is one of them."""

    target: str
    options: dict[str, str]
    rungs: list[str]
    device: str | None
    warm: int
    steps: int
    torch: TorchRecording | None = None
    seconds: float | None = None
    recorded: Recorded | None = None


class Times(msgspec.Struct, kw_only=True, omit_defaults=True):
    """steps_ns: of the recorded steps, and `span`, their begin and end on CLOCK_MONOTONIC; of torch.profiler bare_ns and bare_span of
    those without it as well; bus: the GPU's PCI address."""

    bus: str | None = None
    steps_ns: list[int]
    span: tuple[int, int] | None = None
    bare_ns: list[int] | None = None
    bare_span: tuple[int, int] | None = None


def main(argv: list[str]) -> int:
    from rung.errors import RungError

    request = msgspec.json.decode(argv[0], type=StepsRequest)
    try:
        if request.recorded:
            Ranks.here = placed(os.environ)
        with writing() as files:
            times = run(request, files)
            if (path := os.environ.get(REPORT)) and Ranks.here.rank == 0:
                place = files.place(path)
                place.write_bytes(msgspec.json.encode(times))
                files.told(place)
    except RungError as error:
        print(f"rung: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(request: StepsRequest, files: Writing = HERE) -> Times:
    """files: where a trace is written, and who is told of it."""
    from rung.hardware.sensors import identity
    from rung.profilers import torch_profiler
    from rung.timing.workers import WORKLOAD

    candidate = pkgutil.resolve_name(WORKLOAD)()
    candidate.open(request.target, request.options, request.rungs, request.device)
    candidate.first()
    device = candidate.device
    torch_profiler.unrecorded(candidate.call, request.warm, device)
    seconds, bus = request.seconds or 0.0, (identity(device) or {}).get("bus")
    begin = time.monotonic_ns()
    if chosen := request.torch:
        bare = torch_profiler.unrecorded(candidate.call, request.steps, device, seconds)
        middle = time.monotonic_ns()
        clock = clocks.compared() if request.recorded else None
        if request.recorded and not request.recorded.has(Ranks.here.rank):
            total = replace(chosen.options, active=request.steps).total
            times = torch_profiler.unrecorded(candidate.call, total, device)
            _say_clocks(clock, chosen.path, files)
            return Times(steps_ns=times)
        path = files.place(chosen.path.replace("{rank}", str(Ranks.here.rank)))
        times = torch_profiler.record(candidate.call, str(path), request.steps, device, chosen.options)
        for written in sorted(path.parent.glob(f"{path.name.removesuffix('.json.gz')}.*")):  # of each round
            files.told(written)
        _say_clocks(clock, chosen.path, files)
        return Times(bus=bus, steps_ns=times, bare_ns=bare, bare_span=(begin, middle))
    times = _marked(candidate, request.steps, seconds)
    return Times(bus=bus, steps_ns=times, span=(begin, time.monotonic_ns()))


def _say_clocks(before: Compared | None, trace: str, files: Writing) -> None:
    """Compares the clocks again; rank 0 writes what all saw beside the traces."""
    if before is None or (after := clocks.compared()) is None:
        return
    if said := clocks.document([before, after]):
        place = files.place(os.path.join(os.path.dirname(trace), NAME))
        place.write_bytes(said)
        files.told(place)


def _marked(candidate: Any, steps: int, seconds: float) -> list[int]:
    from rung.hardware.device import synchronize

    found: list[int] = []
    with _switched_on(candidate.device):
        while len(found) < steps or sum(found) < seconds * 1e9:
            begin = time.perf_counter_ns()
            with _range(candidate.device, f"ProfilerStep#{len(found)}"):
                candidate.call()
                synchronize(candidate.device)
            found.append(time.perf_counter_ns() - begin)
    return found


@contextlib.contextmanager
def _range(device: Any, name: str) -> Iterator[None]:
    """torch's NVTX is roctx in its builds for ROCm; some builds have neither."""
    if not device.is_gpu:
        yield
        return
    import torch

    pushed = False
    with contextlib.suppress(RuntimeError, AttributeError):
        torch.cuda.nvtx.range_push(name)
        pushed = True
    try:
        yield
    finally:
        if pushed:
            torch.cuda.nvtx.range_pop()


@contextlib.contextmanager
def _switched_on(device: Any) -> Iterator[None]:
    """nsys and ncu wait for this; on ROCm the whole process is recorded."""
    if device.vendor != "nvidia":
        yield
        return
    import torch

    torch.cuda.profiler.start()
    try:
        yield
    finally:
        torch.cuda.profiler.stop()
