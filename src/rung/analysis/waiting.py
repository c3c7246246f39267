"""The calls in which the host waits for the GPU."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import runtime_calls
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.trace.table import Trace


@once
def host_waits(trace: Trace) -> pl.DataFrame:
    """The rows of `host_calls` that wait for the GPU, with `position` (there) and `why`:

    synchronize: calls that do nothing else (runtime_calls.toml). blocking copy: calls to copy that always return when
    the copy is done, and those that did here, as copies from and to pageable memory do.
    """
    runtime = runtime_calls(trace)
    copied = (
        origins(trace).filter(pl.col("kind") == "memcpy", pl.col("launch").is_not_null())
        .group_by("launch").agg(copied=pl.col("end").max())
    )  # fmt: skip
    why = (
        pl.when(pl.col("role").is_in(["synchronize", "blocking copy"])).then("role")
        .when((pl.col("role") == "copy") & (pl.col("copied") <= pl.col("end"))).then(pl.lit("blocking copy"))
    )  # fmt: skip
    joined = runtime.join(copied, left_on="position", right_on="launch", how="left", maintain_order="left")
    return joined.with_columns(why=why).filter(pl.col("why").is_not_null()).drop("role", "copied")
