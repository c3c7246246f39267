"""What a trace of a few steps counts, for a rung to be shown in effect."""

from __future__ import annotations

from typing import Any

import polars as pl

from rung.rungs.rung import Counters
from rung.trace.table import Trace


def counters(trace: Trace, parts: dict[str, Any], steps: int) -> Counters:
    """Counted per step. parts: the breakdown of the same trace (`Breakdown.as_dict`)."""
    seen = trace.events.filter(pl.col("kind").is_in(["kernel", "cpu_op", "runtime"]))
    names = {str(name): count / steps for name, count in seen.group_by("name").len().iter_rows()}
    return Counters(parts["launches"], parts["kernels"], parts["gemms"], names)
