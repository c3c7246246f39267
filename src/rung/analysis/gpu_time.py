"""Where the time of the busiest GPU goes, over the whole trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from rung.analysis.gaps import dry_times
from rung.analysis.intervals import covered
from rung.quantities import duration
from rung.trace.table import Trace


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


def gpu_time(trace: Trace, events: pl.DataFrame) -> Totals:
    """Of the GPU events of `classified`, at least one."""
    notes = []
    per_device = events.group_by("device").agg(pl.col("dur").sum()).sort("dur", "device", descending=[True, False])
    device = per_device["device"][0]
    if per_device.height > 1:
        events = events.filter(pl.col("device") == device)
        notes.append(f"The trace has {per_device.height} devices; device {device}, the busiest, is shown.")
    start, end = events["ts"].to_numpy(), events["end"].to_numpy()
    busy, window = covered(start, end), int(end.max() - start.min())
    late = dry_times(trace).filter(pl.col("device").is_in(events["device"].unique().implode()), "late")
    launch_gap = min(int((late["end"] - late["ts"]).sum()), window - busy)
    sums = events.group_by("name", "category", maintain_order=True).agg(pl.len(), pl.col("dur").sum())
    # Streams overlap: each category keeps its proportion, together they cover the busy time once.
    scale = busy / max(1, int(sums["dur"].sum()))
    rows = list(sums.iter_rows())
    if 0 < scale < 0.99:
        notes.append(
            f"Streams overlap: {duration(busy / scale)} of GPU work in {duration(busy)}; times here are scaled down to the second."
        )

    unlinked = events.filter(~pl.col("linked"))
    if unlinked.height == events.height:
        notes.append(
            "No launches were recorded: waits for a launch count as idle, and kernels are classified by name alone."
        )
    elif unlinked.height:
        share = int(unlinked["dur"].sum()) / max(1, int(events["dur"].sum()))
        notes.append(
            f"{share * 100:.0f}% of GPU time ({unlinked.height} x) was launched outside the recorded window: it counts, "
            "but has no operators."
        )
    replayed = events.filter("graph", pl.col("op").is_null())
    if replayed.height:
        notes.append(
            f"{replayed.height} GPU events were replayed by {_launches(replayed['launch'].n_unique())}: their "
            "categories come from kernel names alone, and launches count a replay once."
        )
    return Totals(
        window=window,
        busy=busy,
        launch_gap=launch_gap,
        idle=window - busy - launch_gap,
        times={(name, category): ns * scale for name, category, _, ns in rows},
        counts=Counter({(name, category): count for name, category, count, _ in rows}),
        kernels=events.filter(pl.col("kind") == "kernel").height,
        gemms=events.filter(pl.col("named") == "gemm").height,
        notes=notes,
        device=device,
    )


def _launches(count: int) -> str:
    return f"{count} launches of a graph" if count > 1 else "one launch of a graph"
