"""A few steady steps of a workload, for a profiler to see: `python launch/start.py rung.profilers.steps REQUEST`.

REQUEST is a JSON object: target, options, rungs, device, warm, steps; `torch` (path and options of torch.profiler) where
that records; `seconds` that the unrecorded steps are to take, for sensors that are read beside them. Steps are marked as torch.profiler marks them, `ProfilerStep#N`, through roctx or NVTX; on NVIDIA the
recording is switched on for them alone. Their times go to the file that $RUNG_STEPS names.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import sys
import time
from collections.abc import Iterator
from typing import Any

REPORT = "RUNG_STEPS"


def main(argv: list[str]) -> int:
    from rung.errors import RungError

    request = json.loads(argv[0])
    try:
        times = run(request)
    except RungError as error:
        print(f"rung: {error}", file=sys.stderr)
        return error.exit_code
    if path := os.environ.get(REPORT):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(times, file)
    return 0


def run(request: dict[str, Any]) -> dict[str, Any]:
    """`steps_ns` of the recorded steps, and `span`, their begin and end on CLOCK_MONOTONIC; of torch.profiler `bare_ns`
    and `bare_span` of those without it as well. bus: the GPU's PCI address."""
    from rung.hardware.sensors import identity
    from rung.profilers import torch_profiler
    from rung.timing.workers import WORKLOAD

    candidate = pkgutil.resolve_name(WORKLOAD)()
    candidate.open(request["target"], request["options"], request["rungs"], request["device"])
    candidate.first()
    device = candidate.device
    torch_profiler.unrecorded(candidate.call, request["warm"], device)
    seconds, found = request.get("seconds", 0.0), {"bus": (identity(device) or {}).get("bus")}
    begin = time.monotonic_ns()
    if chosen := request.get("torch"):
        options = torch_profiler.Options(**chosen["options"])
        bare = torch_profiler.unrecorded(candidate.call, request["steps"], device, seconds)
        middle = time.monotonic_ns()
        times = torch_profiler.record(candidate.call, chosen["path"], request["steps"], device, options)
        return found | {"steps_ns": times, "bare_ns": bare, "bare_span": [begin, middle]}
    times = _marked(candidate, request["steps"], seconds)
    return found | {"steps_ns": times, "span": [begin, time.monotonic_ns()]}


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
