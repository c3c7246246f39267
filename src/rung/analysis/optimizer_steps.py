"""Which recorded optimizer steps are a step alone: Lightning, and L-BFGS, run the forward and backward pass inside of `step`, as a closure."""

from __future__ import annotations

import numpy as np
import polars as pl

STEP = "Optimizer.step#"  # how torch marks them
_BACKWARD = "autograd::engine::evaluate_function"


def plain_steps(events: pl.DataFrame) -> pl.Series:
    """Of each event, whether it is an optimizer's step during which no backward pass ran. Only what such a step calls is the optimizer's."""
    process = pl.concat_str(pl.col("rank", "pid").cast(pl.String).fill_null(""), separator=" ").alias("process")
    begins = pl.col("name").str.starts_with
    found = events.select((pl.col("kind") == "annotation") & begins(STEP)).to_series().fill_null(False)
    if not found.any():
        return found
    steps = events.with_row_index("at").filter(found).select("at", "ts", "dur", process)
    nodes = events.filter(pl.col("kind") == "cpu_op", begins(_BACKWARD)).select("ts", process)
    backward = {key[0]: np.sort(part["ts"].to_numpy()) for key, part in nodes.group_by("process")}
    plain = found.to_numpy().copy()
    for at, ts, duration, key in steps.iter_rows():
        if key in backward:
            first, last = np.searchsorted(backward[key], (ts, ts + duration))
            plain[at] = first == last
    return pl.Series(plain)
