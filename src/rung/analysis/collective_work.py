"""What collectives move: the rows of the roofline that are about the network."""

from __future__ import annotations

from typing import Any

import polars as pl

from rung.analysis.collective_calls import gpu_collectives, plain, size_bytes
from rung.analysis.collectives import link_factor
from rung.analysis.origins import origins
from rung.analysis.work import COLLECTIVE
from rung.trace.table import Trace


def collective_work(trace: Trace, steps: int) -> list[dict[str, Any]]:
    """One row each kind, type, size and group size of the collectives whose launch the trace has (all, where it has no
    launches): op, inputs, time_ns, count, gpu_events, and where the size is known moved_bytes, tb_per_s and bound.

    moved_bytes: over each rank's link, by the algorithm where the kernel's name says it, else as the bus bandwidth of nccl-tests
    counts them. The time is that of the kernels,
    waiting for other ranks included. There is no floor: what the links could do is not in a trace.
    """
    own = gpu_collectives(trace)
    if own.is_empty():
        return []
    kinds = pl.col("collective").map_elements(plain, return_dtype=pl.String)
    rows = own.filter(pl.col("known") | (not origins(trace)["linked"].any())).with_columns(collective=kinds)
    rows = rows.with_columns(size=size_bytes(), moved=size_bytes() * link_factor(pl.col("group_size")))
    calls = pl.struct("rank", "call").filter(pl.col("call").is_not_null()).n_unique()
    sums = rows.group_by("collective", "dtype", "group_size", "size", "moved", maintain_order=True).agg(
        time=(pl.col("end") - pl.col("ts")).sum(), gpu_events=pl.len(), calls=calls
    )
    return [_row(row, steps) for row in sums.iter_rows(named=True)]


def _row(row: dict[str, Any], steps: int) -> dict[str, Any]:
    calls = row["calls"] or row["gpu_events"]
    answer = {
        "op": row["collective"],
        "time_ns": row["time"],
        "count": calls / steps,
        "gpu_events": row["gpu_events"] / steps,
    }
    if not row["moved"]:
        return answer | {"op": f"({COLLECTIVE})", "reason": COLLECTIVE}
    moved = row["moved"] * calls
    return answer | {
        "inputs": f"{_size(row['size'])} {row['dtype']}, {row['group_size']} ranks",
        "family": "collective",
        "bound": "network",
        "moved_bytes": round(moved / steps),
        "tb_per_s": moved / row["time"] / 1e3 if row["time"] else None,
    }


def _size(size: int) -> str:
    unit, scale = next(((unit, scale) for unit, scale in (("MiB", 2**20), ("KiB", 2**10)) if size >= scale), ("B", 1))
    return f"{size / scale:.3g} {unit}"
