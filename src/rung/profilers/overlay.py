"""Samples of power, memory and clocks laid over a trace of the same run: as curves beside its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from rung.errors import InputError
from rung.files import check_regular
from rung.profilers.samples import SCHEMA
from rung.trace.table import CURVES, Trace

# What is drawn: column of the samples → name and unit of the curve.
_DRAWN = {
    "power_w": ("power", "W"),
    "used_bytes": ("device memory", "bytes"),
    "core_mhz": ("core clock", "MHz"),
    "memory_mhz": ("memory clock", "MHz"),
    "celsius": ("temperature", "°C"),
    "busy_share": ("busy", "share"),
    "memory_busy_share": ("memory busy", "share"),
    "throttled": ("throttled", "yes or no"),  # whatever the reason: samples.csv has it
}


def read_samples(path: Path) -> pl.DataFrame:
    """samples.parquet or samples.csv. Raises InputError for a file that is none."""
    try:
        check_regular(path)
        if path.suffix == ".csv":
            return pl.read_csv(path, schema=SCHEMA)
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read as samples ({str(error).splitlines()[0]}).") from None
    if table.schema != SCHEMA:
        raise InputError(
            f"{path} has other columns than samples of GPUs: give samples.parquet or samples.csv of a run."
        )
    return table


def laid_over(trace: Trace, samples: pl.DataFrame) -> Trace:
    """The trace with the samples among its curves, on its own clock, in place of those that it had.

    torch.profiler counts from a moment of the day that the file states, rocprofv3 and rocpd since the start of the machine:
    the clock on which both overlap is taken. GPUs are numbered by the vendor's tools in samples, by the runtime in
    traces: where HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES were set, the numbers differ.
    Raises InputError where no clock gives samples and events a moment in common.
    """
    moments = trace.events.select(pl.col("ts").min(), end=(pl.col("ts") + pl.col("dur")).max()).row(0)
    base = trace.meta.get("baseTimeNanoseconds")
    clocks = {"boottime_ns": 0, "monotonic_ns": 0, "realtime_ns": base if isinstance(base, int) else 0}
    for clock, shift in clocks.items():
        at = samples[clock] - shift
        if None not in moments and samples.height and at.min() <= moments[1] and at.max() >= moments[0]:
            curves = _curves(samples.with_columns(ts=at), trace)
            names = [name for name, _ in _DRAWN.values()]
            others = trace.curves.filter(~pl.col("name").is_in(names))
            return replace(trace, curves=pl.concat([others, curves]))
    raise InputError(f"the samples and {trace.source} have no moment in common: are they of one run?")


def _curves(samples: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """The readings that differ from the one before, and the last, so that a curve reaches to its end."""
    known = trace.events.filter(pl.col("device").is_not_null())
    ranks = known.group_by(gpu="device").agg(pl.col("rank").first())
    placed = samples.join(ranks, on="gpu", how="left").sort("gpu", "ts")
    made = []
    for column, (name, unit) in _DRAWN.items():
        text = placed.schema[column] == pl.String
        if text and (placed[column] == "").all():
            continue  # never held down, or the GPU does not say
        value = (pl.col(column) != "").cast(pl.Float64) if text else pl.col(column).cast(pl.Float64)
        there = placed.filter(value.is_not_null())
        new = (value != value.shift()).over("gpu").fill_null(True)
        last = pl.col("ts") == pl.col("ts").max().over("gpu")
        made.append(
            there.filter(new | last).select(
                pl.lit(name).alias("name"), pl.lit(unit).alias("unit"), "rank", device="gpu", ts="ts", value=value
            )
        )
    return pl.concat(made).cast(CURVES)  # type: ignore[arg-type]
