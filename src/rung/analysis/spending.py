"""What takes the GPU's time, ranked: kernels, kinds of work, operators, lines of Python, copies. How often, how long, what share."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.classified import classified
from rung.analysis.classifier import copy_direction
from rung.analysis.frames import enclosing, launching_user_frames, place
from rung.analysis.gpu_events import gpu_events
from rung.analysis.origins import origins
from rung.analysis.waiting import host_waits
from rung.trace.table import Trace

GRAPH = "(replayed by a graph)"
OUTSIDE = "(launched outside of the trace)"


def without(what: str) -> pl.Expr:
    """What stands in place of an operator, module or call site that a GPU event has none of."""
    return (
        pl.when("graph").then(pl.lit(GRAPH))
        .when(~pl.col("linked")).then(pl.lit(OUTSIDE))
        .otherwise(pl.lit(f"(no {what})"))
    )  # fmt: skip


def spending(items: pl.DataFrame, by: Sequence[str], steps: int, extra: Sequence[pl.Expr] = ()) -> pl.DataFrame:
    """Rows of `items` (each with `dur` in ns) grouped by some columns, the most time first.

    count and time_ns are per step; share is of all time, cumulative_share of this row and those above. mean, median,
    min, max, std (of the sample) are of one item. The times of all rows add up to that of all items.
    extra: further aggregates, put after the share.
    """
    dur = pl.col("dur")
    rounded = [
        dur.mean().round().cast(pl.Int64).alias("mean_ns"),
        dur.median().round().cast(pl.Int64).alias("median_ns"),
        dur.min().alias("min_ns"),
        dur.max().alias("max_ns"),
        dur.std().round().cast(pl.Int64).alias("std_ns"),
    ]
    grouped = items.group_by(by).agg(dur.sum().alias("total"), (pl.len() / steps).alias("count"), *extra, *rounded)
    ranked = grouped.sort("total", *by, descending=[True, *(False for _ in by)], nulls_last=True)
    total, more = pl.col("total"), [expression.meta.output_name() for expression in extra]
    return ranked.select(
        *by,
        "count",
        (total / steps).round().cast(pl.Int64).alias("time_ns"),
        (total / total.sum()).alias("share"),
        (total.cum_sum() / total.sum()).alias("cumulative_share"),
        *more,
        *(expression.meta.output_name() for expression in rounded),
    )


def part(condition: pl.Expr | str, name: str) -> pl.Expr:
    """The fraction of a group's time for which the condition holds, as a column `<name>_share`."""
    return (pl.col("dur").filter(condition).sum() / pl.col("dur").sum()).alias(f"{name}_share")


def kernels(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a name of GPU events (kernels, copies, memsets), over all ranks and devices, most time first.

    time_ns: the sum of durations per step.
    share: of the durations of all GPU events.
    count: per step.
    name: of the kernel.
    category, detail: the kind of work; of its largest part if operators give one name several kinds.
    mean_ns, median_ns, min_ns, max_ns, std_ns: mean, median, least, most and standard deviation of one event.
    graph_share: of its time, what a graph replayed.
    unlinked_share: of its time, what was launched outside of the trace. Both are real work that cannot be joined with its operators.
    """
    events = classified(trace)
    kinds = events.group_by("name", "category", "detail").agg(pl.col("dur").sum())
    kind = kinds.sort("dur", "category", "detail", descending=[True, False, False]).unique("name", keep="first")
    ranked = spending(events, ["name"], steps, [part("graph", "graph"), part(~pl.col("linked"), "unlinked")])
    return ranked.join(kind.drop("dur"), on="name", maintain_order="left").select(
        "time_ns", "share", "count", "name", "category", "detail", "mean_ns", "cumulative_share",
        "median_ns", "min_ns", "max_ns", "std_ns", "graph_share", "unlinked_share",
    )  # fmt: skip


def categories(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a category and detail, over all ranks and devices, most time first.

    events: GPU events per step.
    time_ns: the sum of their durations per step. They may overlap, so the sum may exceed the busy time.
    share: of the durations of all GPU events, which the rows add up to.
    mean_ns: of one event.
    largest: the kernel with most time in it.
    """
    events = classified(trace)
    kernels = (
        events.group_by("category", "detail", "name")
        .agg(pl.col("dur").sum())
        .sort("dur", "name", descending=[True, False])
    )
    largest = kernels.group_by("category", "detail").agg(largest=pl.col("name").first())
    dur = pl.col("dur")
    return (
        events.group_by("category", "detail")
        .agg(
            events=pl.len() / steps,
            time_ns=dur.sum(),
            mean_ns=dur.mean().round().cast(pl.Int64),
        )
        .with_columns(share=pl.col("time_ns") / pl.col("time_ns").sum(), time_ns=(pl.col("time_ns") / steps).round().cast(pl.Int64))
        .join(largest, on=["category", "detail"])
        .sort("time_ns", "category", "detail", descending=[True, False, False])
        .select("category", "detail", "events", "time_ns", "share", "mean_ns", "largest")
    )  # fmt: skip


_INPUTS = ("dims", "dtypes", "strides")


def ops(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row an operator with its input shapes, dtypes and strides, most GPU time first.

    Work without an operator has rows as well: what a graph replayed, what was launched outside of the trace, what no operator launched. So
    the times add up to that of all GPU events.

    time_ns: GPU time per step, the sum of durations.
    share: of the durations of all GPU events.
    count: calls per step; of work without an operator, GPU events.
    op: the innermost operator around the launch; of what a graph replayed, the captured one if a capture trace tells it.
    category: of its largest part.
    kernels: GPU events per step.
    mean_ns, median_ns, min_ns, max_ns, std_ns: mean, median, least, most and standard deviation of one call.
    """
    events = classified(trace).with_row_index("event")
    calls = launching_calls(trace)
    inputs = [calls[name].gather(events["op"]).cast(pl.String).alias(name) for name in _INPUTS]
    named = events.select(
        "category", "dur", *inputs,
        op=pl.coalesce(calls["name"].gather(events["op"]), without("operator")),
        call=pl.coalesce("call", -1 - pl.col("event").cast(pl.Int64)),
    )  # fmt: skip
    keys = ["op", *_INPUTS]
    kinds = named.group_by(*keys, "category").agg(pl.col("dur").sum())
    kind = kinds.sort("dur", "category", descending=[True, False]).unique(keys, keep="first").drop("dur")
    per_call = named.group_by(*keys, "call").agg(pl.col("dur").sum(), events=pl.len())
    kernels = (pl.col("events").sum() / steps).alias("kernels")
    ranked = spending(per_call, keys, steps, [kernels])
    return ranked.join(kind, on=keys, how="left", nulls_equal=True, maintain_order="left").select(
        "time_ns", "share", "count", "op", "dims", "category", "kernels", "mean_ns", "cumulative_share", "dtypes", "strides",
        "median_ns", "min_ns", "max_ns", "std_ns",
    )  # fmt: skip


def call_sites(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a function of the user's program and libraries (PyTorch's left out), as in `model.py(12): forward`.

    The trace must have been recorded with stacks. GPU work counts for the innermost such function around its operator. Work of a backward
    operator counts for the function that called the forward one. Work of a graph counts for the function that captured it if a capture trace
    tells, otherwise for the one that replayed it. Work without a function has a row of its own, so that the times add up to that of all
    GPU events.

    time_ns: the sum of durations per step.
    share: of the durations of all GPU events.
    count: GPU events per step.
    call_site: the function; null for work without one.
    backward_share: of its time, what backward operators launched.
    graph_share: of its time, what graphs replayed.
    mean_ns, median_ns, min_ns, max_ns, std_ns: mean, median, least, most and standard deviation of one GPU event.
    """
    frames = launching_user_frames(trace)
    of_event, _ = enclosing(trace, frames)
    named = (
        classified(trace)
        .select(
            "dur", "backward", "graph", call_site=pl.coalesce(frames["name"].gather(of_event), without("Python frame"))
        )
        .with_columns(place())
    )
    ranked = spending(named, ["call_site"], steps, [part("backward", "backward"), part("graph", "graph")])
    return ranked.select(
        "time_ns", "share", "count", "call_site", "backward_share", "graph_share", "mean_ns", "cumulative_share",
        "median_ns", "min_ns", "max_ns", "std_ns",
    )  # fmt: skip


EDGES_US = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)


def durations(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a range of durations, of all kernels, copies and memsets, over all ranks and devices; none without any of them.

    Kernels below 10 us do not hide a launch.

    from_ns, below_ns: the range; below_ns is null for the last.
    count: events per step.
    time_ns: their durations per step.
    count_share: of the events.
    share: of the durations.
    """
    edges = pl.DataFrame({"from_ns": [us * 1000 for us in EDGES_US]}, schema={"from_ns": pl.Int64})
    ranges = edges.with_columns(below_ns=pl.col("from_ns").shift(-1))
    events = gpu_events(trace).select("dur").sort("dur").join_asof(edges, left_on="dur", right_on="from_ns")
    sums = events.group_by("from_ns").agg(count=pl.len(), time=pl.col("dur").sum())
    table = ranges.join(sums, on="from_ns", how="left", maintain_order="left").with_columns(
        pl.col("count", "time").fill_null(0)
    )
    return table.filter(pl.col("count").sum() > 0).select(
        "from_ns", "below_ns", pl.col("count") / steps, (pl.col("time") / steps).round().cast(pl.Int64).alias("time_ns"),
        (pl.col("count") / pl.col("count").sum()).alias("count_share"), (pl.col("time") / pl.col("time").sum()).alias("share"),
    )  # fmt: skip


_ENDS = r"\(([^()]*->[^()]*)\)"


def copies(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a direction of copies and memsets, over all ranks and devices, most time first.

    direction: HtoD, DtoH, DtoD or memset.
    ends: as the profiler says, as in Pageable -> Device.
    count: per step.
    moved_bytes: per step.
    time_ns: the sum of durations per step.
    gb_per_s: bytes by time, of the copies whose size was recorded. Compare it with the link: 25 GB/s for PCIe 4 x16, 50 for PCIe 5.
        Pageable memory reaches a fraction.
    share: of the durations of all GPU events.
    mean_bytes: of one copy.
    blocking: copies per step for which the host waited.
    """
    events = origins(trace)
    total = events["dur"].sum()
    waits = host_waits(trace)["position"]
    moves = events.filter(pl.col("kind") != "kernel")
    names = moves.select("name", "kind").unique()
    ways = names.with_columns(direction=pl.Series([copy_direction(*row) for row in names.rows()], dtype=pl.String))
    moves = moves.join(ways, on=["name", "kind"], maintain_order="left").with_columns(
        ends=pl.col("name").str.extract(_ENDS),
        sized=pl.col("bytes").is_not_null(),
    )
    time, moved = pl.col("dur"), pl.col("bytes")
    return (
        moves.group_by("direction", "ends")
        .agg(
            count=pl.len() / steps,
            moved_bytes=(moved.sum() / steps).round().cast(pl.Int64),
            total=time.sum(),
            gb_per_s=moved.sum() / time.filter("sized").sum().cast(pl.Float64),
            share=time.sum() / total,
            mean_bytes=moved.mean().round().cast(pl.Int64),
            blocking=pl.col("launch").is_in(waits.implode()).sum() / steps,
        )
        .sort("total", "direction", "ends", descending=[True, False, False], nulls_last=True)
        .select(
            "direction", "ends", "count", "moved_bytes", (pl.col("total") / steps).round().cast(pl.Int64).alias("time_ns"),
            pl.when(pl.col("gb_per_s").is_finite()).then("gb_per_s"), "share", "mean_bytes", "blocking",
        )
    )  # fmt: skip
