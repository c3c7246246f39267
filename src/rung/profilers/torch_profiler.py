"""torch.profiler: a few steady steps into a gzipped Chrome trace."""

from __future__ import annotations

import os
from collections.abc import Callable

from rung.hardware.device import Device, synchronize


def record(step: Callable[[], object], path: str, steps: int, device: Device) -> None:
    """Records `steps` calls of `step`, after one that the profiler itself warms up on.

    The file appears whole or not at all. Operator shapes are recorded, Python stacks are not: they slow the
    host several times over.
    """
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.is_gpu else [])
    synchronize(device)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(steps + 1):
            step()
            synchronize(device)
            profiler.step()
    partial = path.removesuffix(".json.gz") + ".partial.json.gz"
    profiler.export_chrome_trace(partial)
    os.replace(partial, path)
