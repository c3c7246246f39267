"""The calls in which the host waits for the GPU."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls, runtime_calls
from rung.analysis.nesting import nearest
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.steps import step_at, step_spans
from rung.trace.marks import END_OF_STEP
from rung.trace.table import Trace

_OF_DEVICE = "DeviceSynchronize"
# Copies for which an asynchronous call does not wait, as profilers name them: where one is over when the call returns, that is chance.
_NEVER = r"(?i)pinned|device ?-> ?device|DeviceToDevice|DtoD|P2P|Peer"


@once
def host_waits(trace: Trace) -> pl.DataFrame:
    """The rows of `host_calls` in which the program waits for the GPU, with `position` (there) and `why`:

    synchronize: calls that do nothing else (runtime_calls.toml). blocking copy: calls to copy that always return when
    the copy is done, and those that did here, as copies from and to pageable memory do. Of a copy that is in the trace
    none counts that was over only after its call.

    Not among them is what the profiler waits for itself: see `all_waits`.
    """
    return all_waits(trace).filter(~pl.col("profiler")).drop("profiler")


@once
def all_waits(trace: Trace) -> pl.DataFrame:
    """The rows of `host_waits`, and those that are no work of the program's (`profiler`):

    torch.profiler synchronizes the device when it starts and when it stops: such a call is outside of all steps that the process marks, and no
    operator makes it. `rung profile` does so at the end of each step, within an annotation.
    """
    runtime = runtime_calls(trace)
    launched = origins(trace).filter(pl.col("kind") != "memset", pl.col("launch").is_not_null())
    never = (pl.col("kind") == "kernel") | pl.col("name").str.contains(_NEVER)
    copied = launched.group_by("launch").agg(copied=pl.col("end").max(), never=never.any())
    over = pl.col("copied") <= pl.col("end")
    why = (
        pl.when(pl.col("role") == "synchronize").then("role")
        .when((pl.col("role") == "blocking copy") & over.fill_null(True)).then("role")
        .when((pl.col("role") == "copy") & over & ~pl.col("never")).then(pl.lit("blocking copy"))
    )  # fmt: skip
    joined = runtime.join(copied, left_on="position", right_on="launch", how="left", maintain_order="left")
    waits = joined.with_columns(why=why).filter(pl.col("why").is_not_null()).drop("role", "copied", "never")
    return waits.with_columns(profiler=_of_profiler(trace, waits))


def _of_profiler(trace: Trace, waits: pl.DataFrame) -> pl.Series:
    """Whether each call waits for the profiler's sake."""
    calls = host_calls(trace)
    own = ((calls["kind"] == "annotation") & (calls["name"] == END_OF_STEP)).to_numpy()
    end_of_step = pl.Series(nearest(calls["caller"].to_numpy(), own)).gather(waits["position"]) >= 0
    marking = step_spans(trace).select("rank", "pid", marks=pl.lit(True)).unique()
    marks = waits.join(marking, on=["rank", "pid"], how="left", nulls_equal=True, maintain_order="left")["marks"]
    between_steps = step_at(trace, waits.select("rank", "pid", at="ts")).is_null()
    of_device = waits["name"].str.contains(_OF_DEVICE) & (waits["op"] < 0)
    return (end_of_step | (of_device & marks.fill_null(False) & between_steps)).alias("profiler")
