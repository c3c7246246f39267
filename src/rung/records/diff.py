"""What `rung diff --json` prints: two traces beside each other."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from rung.records.measured import Nanoseconds
from rung.records.record import SCHEMA, Part


class Side(Part, kw_only=True):
    """One of the two traces. gpus: of all its ranks; total_ns, busy_ns, parts: sums over these, of `rung.analysis.timeline`; kernels: their
    count; step_ns: of one step of one GPU. On the CPU clock gpus is the number of ranks, computation_ns the time in operators, idle_ns the time
    outside of them, and kernels the number of operator calls."""

    source: str
    device: str
    ranks: int
    gpus: int
    steps: int
    total_ns: int
    busy_ns: int
    parts: dict[str, int]
    kernels: int
    step_ns: Nanoseconds

    @property
    def per(self) -> int:
        """What makes a sum over the trace one step of one GPU."""
        return self.gpus * self.steps


class Changed(Part, kw_only=True):
    """What took a part of the busy time in either trace. base_ns, new_ns, base_count, new_count: of one step of one GPU; delta_ns: new less
    base; delta_share: of the base's step; base_total_ns, new_total_ns: sums over the whole trace, which add up to busy_ns exactly. change:
    faster, slower, same (within 2 %, or 0.05 % of the step), appeared, vanished. base_kernel, new_kernel: that took most of it."""

    what: str
    change: str
    base_ns: Nanoseconds
    new_ns: Nanoseconds
    delta_ns: Nanoseconds
    delta_share: float | None
    base_count: float
    new_count: float
    base_total_ns: int
    new_total_ns: int
    base_kernel: str | None
    new_kernel: str | None


class Difference(Part, kw_only=True, tag_field="kind", tag="diff"):
    """ratio: the new step's time over the base's; tables: by what rows are aligned by, the largest changes first; slower: ratio above 1;
    failed: of --fail-if-slower; clock: cpu where neither trace has GPU events."""

    schema: int = SCHEMA
    base: Side
    new: Side
    ratio: float
    tables: dict[str, list[Changed]]
    notes: list[str]
    slower: bool
    failed: bool
    clock: Literal["cpu"] | UnsetType = UNSET
