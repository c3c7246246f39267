"""What holds a kernel back, and the figures that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from rung.analysis.counters.gpu import Gpu

# A unit that is used to 60 % of its peak is what bounds a kernel, as in the speed-of-light rule of Nsight Compute; below
# that on every side, waves are too few, or they wait. A quarter of the waves is two a SIMD on CDNA: one can work while
# the other waits, and no more.
BUSY, FEW_WAVES, WAITING = 0.6, 0.25, 0.5
RATES = {  # figure → precision, of the matrix units
    "valu_fp16_flops": ("fp16", False),
    "valu_fp32_flops": ("fp32", False),
    "valu_fp64_flops": ("fp64", False),
    "mfma_fp16_flops": ("fp16", True),
    "mfma_bf16_flops": ("bf16", True),
    "mfma_fp32_flops": ("fp32", True),
    "mfma_fp64_flops": ("fp64", True),
    "mfma_fp8_flops": ("fp8", True),
    "mfma_fp6_flops": ("fp6", True),
}
LEVELS = {"hbm": "hbm_bytes", "l2": "l2_bytes", "l1": "l1_bytes", "lds": "lds_bytes"}


def judged(table: pl.DataFrame, gpu: Gpu) -> pl.DataFrame:
    """The same rows with `bound` and `because`."""
    answers = [verdict(row, gpu) for row in table.iter_rows(named=True)]
    return table.with_columns(
        pl.Series("bound", [bound for bound, _ in answers], dtype=pl.String),
        pl.Series("because", [why for _, why in answers], dtype=pl.String),
    )


def verdict(row: Mapping[str, Any], gpu: Gpu) -> tuple[str | None, str]:
    """What bounds a kernel of these figures ("memory", "compute", "occupancy", "latency", None: unknown), and why.

    Shares of a roof or of a unit's time; the one that decides comes first.
    """
    compute, memory = _compute(row, gpu), _memory(row, gpu)
    nearest = dict(sorted((_first(memory) | _first(compute)).items(), key=lambda item: -item[1]))
    most = max(compute.values(), default=0.0), max(memory.values(), default=0.0)
    if max(most) >= BUSY:
        bound, first, other = ("compute", compute, memory) if most[0] > most[1] else ("memory", memory, compute)
        return bound, _said(_first(first) | {k: v for k, v in first.items() if v >= BUSY} | _first(other))
    if not compute or not memory:
        missing = "compute" if not compute else "memory"
        return None, _said(nearest, f"no counters of the {missing} side, or no peaks of this GPU")
    waits, waves = _waits(row), {}
    if row.get("occupancy_share") is not None:
        waves = {"occupancy": min(1.0, row["occupancy_share"] * stretch(row, gpu) * spread(row))}
    if (filled := row.get("waves_per_sm")) is not None and filled < 1:
        waves["the grid fills"] = filled
    if waves.get("occupancy", 1.0) < FEW_WAVES:
        return "occupancy", _said(waves | waits | nearest)
    if max(waits.values(), default=0.0) >= WAITING:
        return "latency", _said(waits | waves | nearest)
    return None, _said(nearest | waits | waves, "nothing stands out" if waits else "no counters of waits")


def stretch(row: Mapping[str, Any], gpu: Gpu) -> float:
    """How much longer the cycle counter ran than the kernel: 1, or its clock over the highest that the GPU has.

    GRBM counts from the dispatch's packet to the last write-back, which of a kernel of a few µs is most of the count;
    shares of cycles are too small by this.
    """
    clock, highest = row.get("clock_mhz"), gpu.facts.get("clock")
    return max(1.0, clock / highest) if clock and highest else 1.0


def spread(row: Mapping[str, Any]) -> float:
    """For how many of the GPU's units a figure of Nsight Compute's active SMs holds: a grid of one block leaves 131 idle."""
    share = row.get("sm_share")
    return 1.0 if share is None else float(share)


def _waits(row: Mapping[str, Any]) -> dict[str, float]:
    """How much of their time waves wait. An SM issues in every cycle in which one of its warps could go on."""
    if row.get("wait_share") is not None:
        return {"waves wait": row["wait_share"]}
    return {"no warp ready": max(0.0, 1 - row["issue_share"])} if row.get("issue_share") is not None else {}


def _compute(row: Mapping[str, Any], gpu: Gpu) -> dict[str, float]:
    whole = {"VALU busy": "valu_busy_share", "MFMA busy": "mfma_busy_share", "SM throughput": "compute_share"}
    active = {"tensor pipe busy": "tensor_busy_share", "issue slots": "issue_share"}
    found = _busy(row, whole, stretch(row, gpu)) | _busy(row, active, spread(row))
    for matrix, said in ((False, "VALU FLOP/s"), (True, "MFMA FLOP/s")):
        seconds = _at_peak(row, gpu, matrix=matrix)
        if seconds and row["time_ns"]:
            found[said] = seconds * 1e9 / row["time_ns"]
    return found


def _memory(row: Mapping[str, Any], gpu: Gpu) -> dict[str, float]:
    found = {}
    for level, name in LEVELS.items():
        moved = row.get(name)
        if moved is None or not row["time_ns"] or level not in gpu.bandwidth:
            continue
        if level == "hbm" and row.get("dram_share") is not None:
            continue  # ncu says it itself, at the clock of that moment
        rate = moved * 1e9 / row["time_ns"]
        if level == "hbm" and rate > gpu.bandwidth["hbm"] and "infinity cache" in gpu.bandwidth:
            # Faster than the memory can be: the Infinity Cache answered, and its roof counts.
            found["Infinity Cache"] = rate / gpu.bandwidth["infinity cache"]
        else:
            found[level.upper()] = rate / gpu.bandwidth[level]
    named = {"memory unit busy": "memory_busy_share", "LDS conflicts": "lds_conflict_share",
             "memory throughput": "memory_share", "DRAM throughput": "dram_share", "L2 throughput": "l2_share"}  # fmt: skip
    return found | _busy(row, named, stretch(row, gpu))


def _busy(row: Mapping[str, Any], named: Mapping[str, str], factor: float) -> dict[str, float]:
    return {said: min(1.0, row[name] * factor) for said, name in named.items() if row.get(name) is not None}


def _at_peak(row: Mapping[str, Any], gpu: Gpu, *, matrix: bool) -> float | None:
    """Seconds that the counted operations take at the peak rates, one after another; None where that is unknown."""
    seconds = None
    for name, (precision, of_matrix) in RATES.items():
        rate = peak_rate(gpu, precision, matrix=matrix)
        if of_matrix == matrix and rate and row.get(name) is not None:
            seconds = (seconds or 0.0) + row[name] / rate
    return seconds


def peak_rate(gpu: Gpu, precision: str, *, matrix: bool) -> float | None:
    """FLOP/s; None for a GPU that is not listed, and for a precision that nothing on it stands in for."""
    try:
        return gpu.peaks.rate(precision, matrix=matrix) if gpu.peaks else None
    except KeyError:
        return None


def _first(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1])[:1])


def _said(shares: Mapping[str, float], more: str = "") -> str:
    told = ", ".join(f"{said} {share:.0%}" for said, share in shares.items())
    return "; ".join(part for part in (told, more) if part)
