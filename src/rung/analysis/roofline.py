"""How close is each operator to what the GPU can do? Rows of collectives are about the network."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import polars as pl

from rung.analysis.collective_calls import gpu_collectives, plain, size_bytes
from rung.analysis.collectives import link_factor
from rung.analysis.costs import Cost, family
from rung.analysis.costs.call import PRECISIONS, roof
from rung.analysis.origins import origins
from rung.analysis.work import COLLECTIVE, GRAPH, NO_OP, OUTSIDE, work
from rung.hardware.peaks import Peaks, peaks_of_properties
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "op": pl.String(),
    "inputs": pl.String(),
    "time_ns": pl.Int64(),
    "share": pl.Float64(),
    "roof_share": pl.Float64(),
    "bound": pl.String(),
    "tflop_per_s": pl.Float64(),
    "tb_per_s": pl.Float64(),
    "count": pl.Float64(),
    "floor_ns": pl.Int64(),
    "reason": pl.String(),
    "family": pl.String(),
    "precision": pl.String(),
    "intensity": pl.Float64(),
    "gpu_events": pl.Float64(),
    "work_flops": pl.Int64(),
    "moved_bytes": pl.Int64(),
    "fits_cache": pl.Boolean(),
    "measured_floor_ns": pl.Int64(),
    "dims": pl.String(),
    "dtypes": pl.String(),
    "strides": pl.String(),
    "inferred": pl.Boolean(),
}
_LARGEST = 2**63 - 1


def roofline(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row an operator with its inputs, most time first; times, work and counts are per step.

    Time that no operator answers for has rows in brackets. Without known peaks the columns of the roof are null.

    op: the operator.
    inputs: what it was called with, readable.
    time_ns: of its GPU events.
    share: of the durations of all GPU events.
    roof_share: floor_ns / time_ns.
    bound: "compute" or "memory", whichever takes longer at the roof; "host link" for copies to and from the host, and "network" for
        collectives. Their roofs are not the GPU's, so they have no floor.
    tflop_per_s, tb_per_s: work and bytes in the time.
    count: calls.
    floor_ns: the time at the roof: the longer of flops / rate and bytes / bandwidth, by the data sheet's peaks.
    reason: why there is no model; null if there is one.
    family: the kind of work.
    precision: the precision whose rate applies ("tf32" if a kernel's name says so).
    intensity: FLOP per byte.
    gpu_events: its GPU events.
    work_flops, moved_bytes: of all calls together, by the model of analysis/costs: the least that is possible. Of a collective, the bytes
        are those over each rank's link (as in the bus bandwidth), and its time includes waiting for other ranks.
    fits_cache: the bytes of one call fit into the last-level cache: then data may come from there, and roof_share may exceed 1.
    measured_floor_ns: floor_ns by the measured peaks, if there are any.
    inferred: launched before the recording, and taken for what recorded kernels of the same names and order do; or of sizes that follow
        from the names and grids of the kernels.
    """
    done = work(trace)
    peaks = peaks_of_trace(trace)
    total = max(int(done.events["dur"].sum()), 1)
    groups = (
        done.events.filter(pl.col("reason").ne_missing(COLLECTIVE))
        .group_by("kind", "reason", "tf32", pl.col("host") & pl.col("kind").is_not_null(), "inferred")
        .agg(time_ns=pl.col("dur").sum(), count=pl.col("call").n_unique(), gpu_events=pl.len())
        .sort("time_ns", "kind", "reason", "inferred", descending=[True, False, False, False], nulls_last=True)
    )
    kinds = done.kinds.rows()
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind, reason, tf32, host, inferred, time_ns, count, gpu_events in groups.iter_rows():
        name, dims, dtypes, strides = kinds[kind][:4] if kind is not None else (f"({reason})", None, None, None)
        cost = done.costs[kind] if kind is not None and reason is None else None
        # Calls that differ in nothing but a scalar, such as a learning rate, are one row.
        key = (name, dims, dtypes, strides, cost, reason, tf32 if cost and cost.matrix else None, host, inferred)
        row = rows.setdefault(key, {"time_ns": 0, "count": 0, "gpu_events": 0})
        row["time_ns"] += time_ns
        row["count"] += count if kind is not None else gpu_events
        row["gpu_events"] += gpu_events
    answers = []
    for (name, dims, dtypes, strides, cost, reason, tf32, host, inferred), row in rows.items():
        answer = {column: value / steps for column, value in row.items()} | {"time_ns": round(row["time_ns"] / steps)}
        answer |= {"op": name, "inputs": readable(dims, dtypes), "share": row["time_ns"] / total, "reason": reason}
        answer |= {"inferred": inferred or (cost is not None and cost.inferred)}
        answer |= {"dims": dims, "dtypes": dtypes, "strides": strides, "family": family(name) if cost else None}
        if cost is not None:
            answer |= _rates(cost, answer["count"], row["time_ns"] / steps, bool(tf32), bool(host), peaks)
        answers.append(answer)
    for row in collective_work(trace, steps):
        answers.append(
            row | {"share": row["time_ns"] / total, "time_ns": round(row["time_ns"] / steps), "inferred": False}
        )
    table = pl.DataFrame(answers, schema=SCHEMA)
    return table.sort(
        "time_ns",
        "op",
        "inputs",
        "strides",
        "inferred",
        descending=[True, False, False, False, False],
        maintain_order=True,
    )


def peaks_of_trace(trace: Trace) -> Peaks | None:
    """The peaks of the first GPU that the trace describes and that is known."""
    return next((found for device in trace.devices if (found := peaks_of_properties(device)) is not None), None)


def coverage(table: pl.DataFrame) -> dict[str, float]:
    """What a roofline table has models for: nanoseconds, and fractions of them.

    total_ns: of all GPU events, which is the sum of the others: modelled_ns; outside_ns, launched outside of the trace;
    collective_ns, of collectives of unknown size; graph_ns, replayed by graphs; no_operator_ns, launched by none;
    unknown_ns, of operators without a model. share: modelled of all; inferred_share: modelled by inference of all;
    linked_share: of all but outside_ns; operator_share: of what an operator answers for, modelled or unknown.
    """
    groups = {
        None: "modelled_ns",
        OUTSIDE: "outside_ns",
        COLLECTIVE: "collective_ns",
        GRAPH: "graph_ns",
        NO_OP: "no_operator_ns",
    }
    found = {"total_ns": 0} | dict.fromkeys(groups.values(), 0) | {"unknown_ns": 0}
    for reason, time_ns in table.group_by("reason").agg(pl.col("time_ns").sum()).iter_rows():
        found[groups.get(reason, "unknown_ns")] += time_ns
        found["total_ns"] += time_ns
    inferred = int(table.filter("inferred", pl.col("reason").is_null())["time_ns"].sum())
    bases = {
        "share": found["total_ns"],
        "linked_share": found["total_ns"] - found["outside_ns"],
        "operator_share": found["modelled_ns"] + found["unknown_ns"],
    }
    shares = {name: found["modelled_ns"] / base if base else 0.0 for name, base in bases.items()}
    return {**found, **shares, "inferred_share": inferred / max(1, found["total_ns"])}


def _rates(cost: Cost, count: float, time_ns: float, tf32: bool, host: bool, peaks: Peaks | None) -> dict[str, Any]:
    precision = "tf32" if tf32 and cost.matrix and cost.precision == "fp32" else cost.precision
    flops, moved = cost.flops * count, cost.bytes * count
    found: dict[str, Any] = {
        "work_flops": min(round(flops), _LARGEST),
        "moved_bytes": min(round(moved), _LARGEST),
        "precision": precision if cost.flops else None,
        "tflop_per_s": flops / time_ns / 1e3 if time_ns else None,
        "tb_per_s": moved / time_ns / 1e3 if time_ns else None,
        "intensity": cost.flops / cost.bytes if cost.bytes else None,
    }
    if host:
        return found | {"bound": "host link"}
    if peaks is None:
        return found
    times = roof(cost, peaks, precision)
    found |= {
        "bound": times.bound,
        "floor_ns": min(round(times.floor * count * 1e9), _LARGEST),
        "roof_share": times.floor * count * 1e9 / time_ns if time_ns else None,
        "fits_cache": peaks.cache is not None and cost.bytes <= peaks.cache,
    }
    if peaks.measured:
        found["measured_floor_ns"] = min(round(times.measured * count * 1e9), _LARGEST)
    return found


@lru_cache(maxsize=65536)
def readable(dims: str | None, dtypes: str | None) -> str | None:
    """Shapes and types of the tensors, as in "788x768 768x768 bf16"; lists as "3 tensors"; None without any."""
    try:
        shapes, types = (msgspec.json.decode(text) if text else [] for text in (dims, dtypes))
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(shapes, list) or not isinstance(types, list) or len(types) not in (0, len(shapes)):
        return None
    words: list[str] = []
    kinds: dict[str, None] = {}
    for i, shape in enumerate(shapes):
        if not isinstance(shape, list) or not shape:
            continue
        if all(isinstance(size, int) for size in shape):
            words.append("x".join(map(str, shape)))
            if types and isinstance(types[i], str):
                kinds.setdefault(PRECISIONS.get(types[i], ""))
        else:
            words.append(f"{len(shape)} tensors")
    return " ".join([*words, "/".join(kind for kind in kinds if kind)]).strip() or None


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
    return [_of_collective(row, steps) for row in sums.iter_rows(named=True)]


def _of_collective(row: dict[str, Any], steps: int) -> dict[str, Any]:
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
