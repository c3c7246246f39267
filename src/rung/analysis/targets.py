"""The few figures that a performance engineer looks at first, against what they should be."""

from __future__ import annotations

from typing import Any

import polars as pl

from rung.analysis import analyses
from rung.analysis.account import account
from rung.analysis.timeline import timeline
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "metric": pl.String(),
    "count": pl.Float64(),
    "share": pl.Float64(),
    "value_bytes": pl.Int64(),
    "target": pl.String(),
    "met": pl.Boolean(),
}
_TOP = 10


def targets(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a metric. Empty if the trace has no GPU events.

    The targets are rules of thumb. Matrix products should take at least 60 % of the time, and waits of the host for the GPU less than 5 %.
    There should be almost no waits of the GPU for launches, no exposed communication and no exposed copies.

    metric: what is measured.
    count: per step and GPU.
    share: of the GPUs' time from the first to the last event, unless the metric says otherwise.
    value_bytes: of a metric about memory.
    target: what it should be, if there is a rule.
    met: whether it is.
    """
    rows = timeline(trace).filter(pl.col("step").is_null())
    if rows.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    own = account(trace)
    launches = analyses.table("launches", trace, steps=steps)
    total, busy = max(1.0, _sum(rows, "total_ns")), max(1.0, _sum(rows, "busy_ns"))
    kernels = own.group_by("name").agg(pl.col("own_ns").sum()).sort("own_ns", descending=True)
    made: list[dict[str, Any]] = [
        {"metric": "GPU events a step", "count": own.height / (rows.height * steps)},
        {"metric": "launches a step", "count": _sum(launches, "launches") / rows.height},
        _share("matrix products", _sum(own.filter(pl.col("category") == "gemm"), "own_ns") / total, 0.60),
        _share("host waits for the GPU", _sum(launches, "sync_ns") * steps / total, 0.05),
        _share("GPU waits for launches", _sum(launches, "host_bound_ns") * steps / total, 0.01),
        _share("exposed communication", _sum(rows, "exposed_communication_ns") / total, 0.05),
        _share("exposed copies", _sum(rows, "exposed_memcpy_ns") / total, 0.01),
        _share("idle", _sum(rows, "idle_ns") / total, 0.05),
        {"metric": f"top {_TOP} kernels, of the busy time", "share": _sum(kernels.head(_TOP), "own_ns") / busy},
    ]
    memory = analyses.table("memory", trace, steps=steps)
    peak = memory.filter(pl.col("device").is_not_null())["peak_bytes"].max() if memory.height else None
    if peak is not None:
        made.append({"metric": "peak memory of tensors", "value_bytes": peak})
    return pl.DataFrame(made, schema=SCHEMA)


def _sum(table: pl.DataFrame, column: str) -> float:
    return float(table[column].sum())


def _share(metric: str, share: float, most: float) -> dict[str, object]:
    return {"metric": metric, "share": share, "target": f"< {most:.0%}", "met": share < most}
