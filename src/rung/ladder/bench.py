"""One workload under one recipe, measured in a fresh worker process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rung.ladder.duel import Limits, Setup, Side, open_worker
from rung.ladder.rungs import chosen
from rung.measure import median_interval
from rung.measure.stats import effective_count


def bench(
    target: str,
    options: Mapping[str, str] | None = None,
    rungs: Sequence[str] = (),
    *,
    device: str | None = None,
    steps: int | None = None,
    deadline: float = 900.0,
    logs: Path | None = None,
) -> dict[str, Any]:
    """Times `steps` steps (the workload's own number if None) after warming up until steady.

    Returns plain values: `time` (median and 95 % interval, nanoseconds a step), `samples` (ns), the first run
    apart, peak memory in bytes, and what was discarded as warm-up.
    """
    chosen(rungs)
    with tempfile.TemporaryDirectory(prefix="rung-bench-") as folder, ExitStack() as stack:
        setup = Setup(device, logs or Path(folder), Limits(prepare=deadline))
        worker = open_worker(stack, setup, Side(target, dict(options or {}), tuple(rungs)), "bench")
        facts = worker.receive("open", deadline)
        warm = worker.call("warm", deadline, seconds=10.0)
        block = worker.call("block", deadline, count=steps or facts["steps"])
        memory = worker.call("memory", deadline)
    return {
        "target": target,
        "workload": facts["name"],
        "mode": facts["mode"],
        "rungs": list(rungs),
        "time": median_interval(block["samples"]).as_dict(),
        "samples": block["samples"],
        "effective_samples": effective_count(block["samples"]),
        "first_run_seconds": warm["first_run_seconds"],
        "warm_up_runs": warm["runs"],
        "steady": warm["steady"],
        "memory": memory,
        "samples_per_step": facts["samples"],
        "tokens_per_step": facts["tokens"],
        "environment": facts["environment"],
    }
