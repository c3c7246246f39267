"""How long does it take to record three steps of many small operators? As a climb does it, and as torch.profiler does by itself.

    python benchmarks/profilers/recording.py [--operators 9000] [--device cpu]

By itself: an export to a .json.gz, with `acc_events=True`, which keeps the rounds of a schedule. The ways take turns, three times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from rung.hardware.device import Device, pick
from rung.profilers.torch_profiler import record

STEPS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=9000, help="of a step")
    parser.add_argument("--device", default=None)
    given = parser.parse_args()
    device = pick(given.device)
    x = torch.rand(64, device=device.torch_name)

    def step() -> None:
        for _ in range(given.operators):
            x.neg_()

    step()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, f"{name}.json.gz")) for name in ("torch", "rung")}
        for _ in range(3):
            alone = seconds(lambda: by_torch(step, files["torch"], device))
            ours = seconds(lambda: record(step, files["rung"], STEPS, device))
            print(f"torch by itself {alone:.1f} s, a climb {ours:.1f} s: {alone / ours:.1f} times", flush=True)
        for name, file in files.items():
            with gzip.open(file) as packed:
                print(name, len(json.load(packed)["traceEvents"]), "events")
    return 0


def by_torch(step: Callable[[], None], path: str, device: Device) -> None:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.is_gpu else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(1 + STEPS):
            step()
            profiler.step()


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())
