"""The table of samples of GPUs' sensors, and what it adds up to: a whole run, or a span of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rung.records.profile import StepEnergy

TABLE, ROWS = "samples.parquet", "samples.csv"  # in the folder of a sampling
SCHEMA: dict[str, pl.DataType] = {
    "gpu": pl.Int32(),  # as the vendor's tools count, whatever is visible to torch
    "bus": pl.String(),  # PCI address, the same everywhere
    # One moment on three clocks, ns: of the day; since some start (CLOCK_MONOTONIC), and that with the time asleep
    # (CLOCK_BOOTTIME), which are those of profilers' traces.
    "realtime_ns": pl.Int64(),
    "monotonic_ns": pl.Int64(),
    "boottime_ns": pl.Int64(),
    "read_ns": pl.Int64(),  # how long the reading took: the moment above is its middle
    "power_w": pl.Float64(),
    "energy_j": pl.Float64(),  # counted since some moment in the past
    "used_bytes": pl.Int64(),  # device memory, of all processes
    "total_bytes": pl.Int64(),
    "core_mhz": pl.Float64(),
    "memory_mhz": pl.Float64(),
    "celsius": pl.Float64(),
    "busy_share": pl.Float64(),
    "memory_busy_share": pl.Float64(),
    "throttled": pl.String(),  # why the clocks are held down, "" while they are not
}
LEAST = 5  # samples in a span whose energy is told


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """One row a GPU: what a table of samples adds up to.

    seconds: from the first to the last sample; energy_j: by the energy counter where there is one, else the integral of the
    power by trapezoids; mean_w: energy by seconds; most_w, most_bytes, most_celsius: the highest readings; core_mhz: median,
    low_mhz the lowest; busy_share: mean; throttled_share: of the samples, and `throttled` the reasons.
    """
    at = pl.col("monotonic_ns") / 1e9
    known = pl.col("power_w").is_not_null()
    power, when = pl.col("power_w").filter(known), at.filter(known)
    trapezoids = ((power + power.shift()) / 2 * when.diff()).sum()
    counted = pl.col("energy_j").drop_nulls().last() - pl.col("energy_j").drop_nulls().first()
    reasons = pl.col("throttled").filter(pl.col("throttled") != "")
    found = table.group_by("gpu", "bus", maintain_order=True).agg(
        seconds=at.max() - at.min(),
        samples=pl.len(),
        energy_j=pl.when(counted > 0).then(counted).otherwise(pl.when(known.sum() > 1).then(trapezoids)),
        most_w=pl.col("power_w").max(),
        most_bytes=pl.col("used_bytes").max(),
        most_celsius=pl.col("celsius").max(),
        core_mhz=pl.col("core_mhz").median(),
        low_mhz=pl.col("core_mhz").min(),
        busy_share=pl.col("busy_share").mean(),
        throttled_share=(pl.col("throttled") != "").mean(),
        throttled=reasons.unique(maintain_order=True).str.join("; "),
    )
    mean = pl.when(pl.col("seconds") > 0).then(pl.col("energy_j") / pl.col("seconds"))
    return found.with_columns(mean_w=mean).sort("gpu")


def energy(table: pl.DataFrame, begin_ns: int, end_ns: int) -> pl.DataFrame:
    """One row a GPU: gpu, bus, samples between two moments of CLOCK_MONOTONIC (ns), and energy_j in that time; null with
    fewer than LEAST samples in it.

    By the energy counter where there is one, else the integral of the power; between samples along straight lines.
    """
    rows = []
    for (gpu, bus), mine in table.sort("monotonic_ns").group_by("gpu", "bus", maintain_order=True):
        inside = mine.filter(pl.col("monotonic_ns").is_between(begin_ns, end_ns)).height
        at, joules = _accumulated(mine)
        known = inside >= LEAST and len(at) > 1 and at[0] <= begin_ns and at[-1] >= end_ns
        spent = float(np.diff(np.interp([begin_ns, end_ns], at, joules))[0]) if known else None
        rows.append((gpu, bus, inside, spent))
    schema = {"gpu": pl.Int32, "bus": pl.String, "samples": pl.Int64, "energy_j": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").sort("gpu")


def step_energy(table: pl.DataFrame, span: tuple[int, int], count: int, bus: str | None) -> StepEnergy | None:
    """Of one of `count` steps between two moments of CLOCK_MONOTONIC (ns). bus: of the GPU that they ran on; None where it is not known,
    and then the answer is, too, unless there is one GPU alone."""
    begin, end = span
    found = energy(table, begin, end)
    # Sensors are counted whatever is visible: the address tells which GPU it was.
    mine = found.filter(pl.col("bus") == bus) if bus else found
    if mine.height != 1:
        return None
    row, seconds = mine.row(0, named=True), (end - begin) / 1e9
    spent = row["energy_j"]
    return StepEnergy(
        gpu=row["gpu"],
        energy_j=spent / count if spent is not None else None,
        mean_w=spent / seconds if spent is not None else None,
        steps=count,
        seconds=seconds,
        samples=row["samples"],
    )


def _accumulated(samples: pl.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Moments (ns) of one GPU's samples, and the joules spent by then since some moment before."""
    counted = samples.drop_nulls("energy_j")
    joules = counted["energy_j"].to_numpy()
    if counted.height > 1 and joules[-1] > joules[0]:
        return counted["monotonic_ns"].to_numpy().astype(np.float64), joules
    known = samples.drop_nulls("power_w")
    at, watts = known["monotonic_ns"].to_numpy().astype(np.float64), known["power_w"].to_numpy()
    steps = np.diff(at) / 1e9 * (watts[1:] + watts[:-1]) / 2
    return at, np.concatenate([[0.0], np.cumsum(steps)])[: len(at)]
