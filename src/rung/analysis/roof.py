"""The time at the roof: how long work takes at the least on a GPU."""

from __future__ import annotations

from typing import NamedTuple

from rung.analysis.costs.call import Cost
from rung.hardware.peaks import Peaks


class Roof(NamedTuple):
    """Seconds: of the arithmetic alone and of the memory traffic alone at the data sheet's peaks; and of the longer of
    the two at the peaks that benchmarks reached, the data sheet's where none is known.
    """

    compute: float
    memory: float
    measured: float

    @property
    def floor(self) -> float:
        return max(self.compute, self.memory)

    @property
    def bound(self) -> str:
        return "compute" if self.compute > self.memory else "memory"


def roof(cost: Cost, peaks: Peaks, precision: str = "") -> Roof:
    """The roof of one call, in the cost's precision or in another one that its kernels are known to use."""
    kind = precision or cost.precision
    rate = peaks.rate(kind, matrix=cost.matrix)
    reached = peaks.measured.get(kind, rate) if cost.matrix else rate
    return Roof(
        cost.flops / rate,
        cost.bytes / peaks.bandwidth,
        max(cost.flops / reached, cost.bytes / peaks.measured.get("bandwidth", peaks.bandwidth)),
    )
