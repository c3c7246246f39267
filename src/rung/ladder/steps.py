"""A few steady steps of a workload, for a profiler to see: `python -m rung.ladder.steps REQUEST`.

REQUEST is a JSON object: target, options, rungs, device, warm, steps; `torch` (path and options of torch.profiler) where
that records. Steps are marked as torch.profiler marks them, `ProfilerStep#N`, through roctx or NVTX; on NVIDIA the
recording is switched on for them alone. Their times go to the file that $RUNG_STEPS names.
"""

from __future__ import annotations

import contextlib
import json
import os
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
    """`steps_ns` of the recorded steps; of torch.profiler, `bare_ns` of as many without it as well."""
    from rung.ladder.candidate import Candidate
    from rung.profilers import torch_profiler

    candidate = Candidate()
    candidate.open(request["target"], request["options"], request["rungs"], request["device"])
    candidate.first()
    device = candidate.device
    torch_profiler.unrecorded(candidate.call, request["warm"], device)
    if chosen := request.get("torch"):
        options = torch_profiler.Options(**chosen["options"])
        bare = torch_profiler.unrecorded(candidate.call, request["steps"], device)
        times = torch_profiler.record(candidate.call, chosen["path"], request["steps"], device, options)
        return {"steps_ns": times, "bare_ns": bare}
    return {"steps_ns": _marked(candidate, request["steps"])}


def _marked(candidate: Any, steps: int) -> list[int]:
    from rung.hardware.device import synchronize

    found = []
    with _switched_on(candidate.device):
        for number in range(steps):
            begin = time.perf_counter_ns()
            with _range(candidate.device, f"ProfilerStep#{number}"):
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
