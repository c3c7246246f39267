"""How GPUs of one kind differ, by the step of the same program on each: measured, and kept out of every comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rung.records.compare import OtherGpu

MATTERS = 0.02  # of a step: processes of one program differ by as much on one GPU (docs/internals/measurement.md)


def other_gpus(samples: Sequence[Mapping[str, Sequence[float]]], elsewhere: Mapping[int, str]) -> list[OtherGpu]:
    """By the first side of each restart. samples: nanoseconds a step, per restart and side; elsewhere: by their place in `samples`, the
    restarts that did not run on the first GPU, with the name of the one on which they did."""
    if not elsewhere:
        return []
    steps = [statistics.median(next(iter(row.values()))) for row in samples]
    first = _middle([ns for k, ns in enumerate(steps) if k not in elsewhere])
    found = []
    for gpu in dict.fromkeys(elsewhere.values()):
        there = [k for k, name in elsewhere.items() if name == gpu]
        found.append(
            OtherGpu(gpu=gpu, restarts=[k + 1 for k in there], step=_middle([steps[k] for k in there]) / first)
        )
    return found


def differs(gpu: OtherGpu) -> bool:
    """Whether it is to be said."""
    return not 1 / (1 + MATTERS) <= gpu.step <= 1 + MATTERS


def _middle(steps: Sequence[float]) -> float:
    """The geometric mean: restarts differ by factors."""
    return math.exp(statistics.fmean(map(math.log, steps)))
