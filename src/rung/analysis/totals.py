"""What a breakdown sums up, whichever clock it stands on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass
class Totals:
    """Nanoseconds over a whole trace. window: from the first to the last event that counts, the sum of busy, launch_gap and
    idle; times: adds up to busy. kernels, gemms and counts are numbers of events; notes: what the reader has to know; device:
    the GPU that all this is of."""

    window: int
    busy: int
    launch_gap: int
    idle: int
    times: dict[tuple[str, str], float]  # by name and category
    counts: Counter[tuple[str, str]]
    kernels: int
    gemms: int
    notes: list[str]
    device: int | None = None
