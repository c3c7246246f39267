"""A few steady steps of a workload, for a profiler to see: `python launch/start.py rung.profilers.steps REQUEST`; one process a rank of a job.

REQUEST is a StepsRequest as JSON. Steps are marked as torch.profiler marks them, `ProfilerStep#N`, through roctx or NVTX; on NVIDIA the
recording is switched on for them alone. Their times, a Times, go to the file that $RUNG_STEPS names. What a workload raises is printed, and
once more as a line that `failure` finds in the log.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rung.errors import RungError, WorkloadError
from rung.hardware.ranks import Ranks
from rung.launch.channel import Reply, WorkerFailed
from rung.launch.gather import HERE, Writing, writing
from rung.launch.rank import placed
from rung.launch.worker import describe
from rung.profilers import clocks, torch_profiler
from rung.profilers.torch_profiler import Options
from rung.trace.clocks import NAME, Compared
from rung.trace.marks import END_OF_STEP

REPORT = "RUNG_STEPS"
FAILED = "rung.profilers.steps: "  # begins the line of a log that says what the workload raised


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


class Sensing(msgspec.Struct):
    """folder: of the samples, as the coordinator names it, in which each rank has one of its own; rate: samples a second."""

    folder: str
    rate: float


class StepsRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """warm, steps: how many before those that are recorded, and of these; torch: where torch.profiler records; seconds: that the
    unrecorded steps are to take, for sensors that are read beside them; recorded: of several ranks, where this process is one of them; sensing: how
    each of these reads its GPU's sensors meanwhile."""

    target: str
    options: dict[str, str]
    rungs: list[str]
    device: str | None
    warm: int
    steps: int
    torch: TorchRecording | None = None
    seconds: float | None = None
    recorded: Recorded | None = None
    sensing: Sensing | None = None


class Times(msgspec.Struct, kw_only=True, omit_defaults=True):
    """steps_ns: of the recorded steps, and `span`, their begin and end on CLOCK_MONOTONIC; of torch.profiler bare_ns and bare_span of
    those without it as well; bus: the GPU's PCI address."""

    bus: str | None = None
    steps_ns: list[int]
    span: tuple[int, int] | None = None
    bare_ns: list[int] | None = None
    bare_span: tuple[int, int] | None = None


def main(argv: list[str]) -> int:
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
        return _ended_by(error, f"rung: {error}", error.exit_code)
    except (Exception, SystemExit) as error:
        return _ended_by(error, traceback.format_exc().rstrip(), WorkloadError.exit_code)
    return 0


def _ended_by(error: BaseException, shown: str, exit_code: int) -> int:
    """Prints what a workload raised, for people and for `failure`."""
    print(f"{shown}\n{FAILED}{json.dumps({'error': describe(error)})}", file=sys.stderr)
    return exit_code


def failure(log: Path) -> WorkerFailed | None:
    """What the workload raised whose output is in a log, of several ranks the first that said so; None where none did."""
    with contextlib.suppress(OSError), log.open("rb") as lines:
        for line in lines:
            _, mark, reply = line.partition(FAILED.encode())  # a launcher may write the number of the rank before it
            if mark:
                with contextlib.suppress(ValueError):
                    return Reply(reply).failure
    return None


def run(request: StepsRequest, files: Writing = HERE) -> Times:
    """files: where a trace is written, and who is told of it."""
    from rung.hardware.sensors import identity
    from rung.timing.workers import WORKLOAD

    candidate = pkgutil.resolve_name(WORKLOAD)()
    candidate.open(request.target, request.options, request.rungs, request.device)
    candidate.first()
    device = candidate.device
    torch_profiler.unrecorded(candidate.call, request.warm, device)
    seconds, bus = request.seconds or 0.0, (identity(device) or {}).get("bus")
    if torch := request.torch:
        with _sensed(request.sensing, device, files) as told:
            begin = time.monotonic_ns()
            bare = _bare(candidate.call, request.steps, device, seconds)
            span = (begin, time.monotonic_ns())
            if told:
                told.count, told.span = len(bare), span
            times = _recorded(candidate.call, request, torch, device, files)
        if request.recorded and not request.recorded.has(Ranks.here.rank):
            return Times(steps_ns=times)
        return Times(bus=bus, steps_ns=times, bare_ns=bare, bare_span=span)
    begin = time.monotonic_ns()
    times = _marked(candidate, request.steps, seconds)
    return Times(bus=bus, steps_ns=times, span=(begin, time.monotonic_ns()))


def _sensed(sensing: Sensing | None, device: Any, files: Writing) -> contextlib.AbstractContextManager[Any]:
    """What reads the sensors of a rank's GPU meanwhile, where that is asked for."""
    if sensing is None:
        return contextlib.nullcontext()
    from rung.profilers.rank_sensors import sensed  # only now: it takes polars

    return sensed(sensing, device, files)


def _bare(call: Callable[[], object], steps: int, device: Any, seconds: float) -> list[int]:
    """Nanoseconds of each step without the profiler: `steps`, or as many as take so many seconds. All ranks take as many."""
    if Ranks.here.world == 1 or not seconds:
        return torch_profiler.unrecorded(call, steps, device, seconds)
    found = torch_profiler.unrecorded(call, steps, device)
    (slowest,) = Ranks.here.most([min(found)])
    return found + torch_profiler.unrecorded(call, math.ceil(seconds * 1e9 / slowest) - steps, device)


def _recorded(
    call: Callable[[], object], request: StepsRequest, torch: TorchRecording, device: Any, files: Writing
) -> list[int]:
    """Nanoseconds of each step while torch.profiler records; of a rank that is not recorded, of its steps meanwhile."""
    clock = clocks.compared() if request.recorded else None
    if request.recorded and not request.recorded.has(Ranks.here.rank):
        times = torch_profiler.unrecorded(call, replace(torch.options, active=request.steps).total, device)
    else:
        path = files.place(torch.path.replace("{rank}", str(Ranks.here.rank)))
        times = torch_profiler.record(call, str(path), request.steps, device, torch.options)
        for written in sorted(path.parent.glob(f"{path.name.removesuffix('.json.gz')}.*")):  # of each round
            files.told(written)
    _say_clocks(clock, torch.path, files)
    return times


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
                with _range(candidate.device, END_OF_STEP):
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
