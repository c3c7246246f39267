"""The few figures that a performance engineer looks at first, against what they should be."""

from __future__ import annotations

from typing import Any

import polars as pl

from rung.analysis import analyses
from rung.analysis.account import account
from rung.analysis.gaps import LATE, caused
from rung.analysis.gpu_events import gpu_events
from rung.analysis.intervals import covered
from rung.analysis.timeline import timeline
from rung.analysis.waiting import host_waits
from rung.trace.ranks import of_rank
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
_PRODUCTS = 0.60


def targets(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a metric. Empty if the trace has no GPU events.

    The targets are rules of thumb. Matrix products should take at least 60% of the time of a transformer: a small share means overheads. There is
    no such target where convolutions or attention take more time than they. Waits of the host for the GPU should take less than 5%.
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
    waits_for_launches = caused(trace).filter(pl.col("cause").is_in([cause for cause in LATE if cause != "profiler"]))
    kernels = own.group_by("name").agg(pl.col("own_ns").sum()).sort("own_ns", descending=True)
    made: list[dict[str, Any]] = [
        {"metric": "GPU events a step", "count": own.height / (rows.height * steps)},
        {"metric": "launches a step", "count": _sum(launches, "launches") / rows.height},
        _matrix_products(own, total),
        _share("host waits for the GPU", _waited(trace) / total, 0.05),
        _share("GPU waits for launches", _sum(waits_for_launches, "gap_ns") / total, 0.01),
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


def _matrix_products(own: pl.DataFrame, total: float) -> dict[str, object]:
    """own: of `account`."""
    products, *others = (
        _sum(own.filter(pl.col("category") == category), "own_ns") for category in ("gemm", "convolution", "attention")
    )
    row: dict[str, object] = {"metric": "matrix products", "share": products / total}
    if not products or products < max(others):
        return row
    return row | {"target": f">= {_PRODUCTS:.0%}", "met": products / total >= _PRODUCTS}


def _waited(trace: Trace) -> int:
    """For how long the hosts waited between the first and the last event of each GPU, whatever thread did, in ns."""
    found = 0
    windows = gpu_events(trace).group_by("rank", "device").agg(first=pl.col("ts").min(), last=pl.col("end").max())
    for rank, _, first, last in windows.iter_rows():
        waits = host_waits(trace).filter(of_rank(rank)).select(pl.col("ts", "end").clip(first, last))
        found += covered(waits["ts"].to_numpy(), waits["end"].to_numpy())
    return found


def _sum(table: pl.DataFrame, column: str) -> float:
    return float(table[column].sum())


def _share(metric: str, share: float, most: float) -> dict[str, object]:
    return {"metric": metric, "share": share, "target": f"< {most:.0%}", "met": share < most}
