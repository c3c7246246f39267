"""Does a restart give the same when another one is timed on another device at the same time?

    python benchmarks/climb/side_by_side.py [--restarts 10] [--groups 0 1 | --gpus 0 1] [-- TARGET key=value ...]

Groups of CPU cores stand in for devices, which GNU's OpenMP keeps processes on (GOMP_CPU_AFFINITY), or GPUs are the devices. Each restart is two
processes of one workload on one device, so its ratio should be 1. Each pair of restarts is timed in both ways, one after the other and at the same time, in an order
that is drawn by lot, with the same processes. `ratio` is of the two equal sides, `step` a step at the same time over one alone,
`asked` the time from an answer to the next question, with its longest. Intervals are Student's, at 95 %, over the restarts.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rung.hardware import pick
from rung.hardware.neighbours import shown_alone
from rung.measure import Restart
from rung.measure.stats import STUDENT
from rung.side import Limits, Setup, Side
from rung.timing.ab_run import ABRun
from rung.timing.side_by_side import side_by_side
from rung.timing.worker_group import Asked, Timing, WorkerGroup


def clocked(timing: Timing, delays: list[float]) -> Timing:
    """The same. delays: gets the seconds that this process takes from one answer to the next question."""
    answer = None
    while True:
        began = time.monotonic()
        try:
            asked: Asked = timing.send(answer)
        except StopIteration as end:
            return end.value
        delays.append(time.monotonic() - began)
        answer = yield asked


def step(restart: Restart) -> float:
    """The logarithm of the first side's step."""
    return statistics.fmean((math.log(row[0]) + math.log(row[-1])) / 2 for row in restart.rounds)


def said(logs: Sequence[float]) -> str:
    found = STUDENT.interval(logs, 0.95)
    return f"{math.exp(found.value):.3f} ({math.exp(found.low):.3f} to {math.exp(found.high):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restarts", type=int, default=10, help="of each device")
    parser.add_argument("--groups", nargs="+", default=["0", "1"], help="cores of each, as 0-3")
    parser.add_argument(
        "--gpus", nargs="+", type=int, default=[], help="as torch counts them; then there are no groups of cores"
    )
    parser.add_argument("--target", default="tiny-transformer")
    parser.add_argument("options", nargs="*", help="of the target, as key=value")
    given = parser.parse_args()
    options = dict(option.split("=", 1) for option in given.options) or {
        "size": "tiny",
        "batch-size": "1",
        "mode": "infer",
    }
    sides = {name: Side(given.target, options) for name in ("best", "candidate")}
    ratios: dict[str, list[float]] = {"alone": [], "at the same time": []}
    steps: dict[str, list[float]] = {"alone": [], "at the same time": []}
    delays: dict[str, list[float]] = {"alone": [], "at the same time": []}
    lots = random.Random(1)
    with TemporaryDirectory() as folder:
        setup = Setup("cuda:0" if given.gpus else "cpu", Path(folder), Limits(300.0, 60.0))
        if given.gpus:
            shown = [shown_alone(gpu, pick().vendor, os.environ) for gpu in given.gpus]
        else:
            shown = [{"OMP_NUM_THREADS": "1", "GOMP_CPU_AFFINITY": group} for group in given.groups]
        for k in range(given.restarts):
            with ExitStack() as stack:
                on = [replace(setup, variables=variables) for variables in shown]
                groups = [WorkerGroup(its, sides, f"{k}-{n}", stack) for n, its in enumerate(on)]
                for group in groups:
                    group.warm(setup.limits.prepare)
                for way in lots.sample(list(ratios), 2):
                    batches = [[group] for group in groups] if way == "alone" else [groups]
                    for batch in batches:
                        timings = [clocked(group.timing(ABRun()), delays[way]) for group in batch]
                        for found in side_by_side(batch, timings):
                            assert isinstance(found, Restart), found
                            ratios[way].append(found.log_ratio())
                            steps[way].append(step(found))
    print("| | ratio of equal sides | spread of it | asked, median | longest |\n|---|---|---|---|---|")
    for way, logs in ratios.items():
        took = delays[way]
        spread = f"{statistics.stdev(logs):.1%}"
        print(
            f"| {way} | {said(logs)} | {spread} | {statistics.median(took) * 1e6:.0f} µs | {max(took) * 1e3:.1f} ms |"
        )
    # In the order of the devices, in both ways.
    beside = [b - a for a, b in zip(steps["alone"], steps["at the same time"], strict=True)]
    print(f"\na step at the same time over one alone: {said(beside)}")


if __name__ == "__main__":
    main()
