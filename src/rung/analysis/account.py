"""Every nanosecond of a GPU's busy time, given to exactly one event, so that sums over events are the timeline."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.categories import classify_kernel, classify_op
from rung.analysis.collective_calls import covered_before
from rung.analysis.intervals import Ints, union
from rung.analysis.nesting import callers, nearest, outermost
from rung.analysis.origins import host_calls, origins
from rung.trace.table import Trace

ROLES = ("computation", "communication", "memcpy")  # where classes overlap, the time is the first one's
COLLECTIVES = "(collectives)"
# Host events around operators that are no work of the user's model: what is inside them counts.
_WRAPPER = r"^(Torch-Compiled Region|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction|## Call CompiledFxGraph|DistributedDataParallel|FullyShardedDataParallel|FSDP::)"
_MODULE = "nn.Module: "


def account(trace: Trace) -> pl.DataFrame:
    """The GPU events with `own_ns`, the part of each that is counted for it, and what it belongs to:

    own_ns: of a time that several events cover, computation comes before communication before copies, and within
        these the event that began first. Summed over a rank and device this is busy_ns of `timeline`, and by role its
        computation_ns, exposed_communication_ns and exposed_memcpy_ns, exactly.
    op: the outermost operator, as the model calls it (`aten::linear`, where an inner one may be a vendor's), "(collectives)"
        for these, null where none launched it. dims: the operator's shapes. module, instance: the nn.Modules around the launch, as
        classes (`Encoder / Layer / Linear`) and with their numbers, null where none are recorded.
    category: by the kernel's name, a role of copies and collectives first.
    """
    events = origins(trace)
    own = np.zeros(events.height, dtype=np.int64)
    rows = events.select("rank", "device", "role", "ts", "end").with_row_index("row")
    for _, part in rows.group_by("rank", "device", maintain_order=True):
        _share(part, own)
    calls = host_calls(trace)
    op = calls["op"].gather(events["op"])
    top = _outermost(calls).gather(op)
    names, dims = calls["name"].gather(top), calls["dims"].gather(top)
    instance = _modules(trace, calls).gather(events["launch"])
    kinds = {name: classify_kernel(name) for name in events["name"].unique().to_list()}
    by_op = {name: classify_op(name) for name in calls["name"].gather(op).unique().drop_nulls().to_list()}
    inner = calls["name"].gather(op).replace_strict(by_op, default="other", return_dtype=pl.String)
    named = pl.col("name").replace_strict(kinds, default="other", return_dtype=pl.String)
    return events.with_columns(
        own_ns=pl.Series(own),
        op=pl.when(pl.col("role") == "communication")
        .then(pl.lit(COLLECTIVES))
        .otherwise(names.str.strip_prefix("autograd::engine::evaluate_function: ")),
        dims=dims,
        inner=inner,
        instance=instance,
        module=instance.str.replace_all(r"_\d+( / |$)", "$1"),
    ).with_columns(
        category=pl.when(pl.col("role") == "communication")
        .then(pl.lit("communication"))
        .when((pl.col("role") == "memcpy") | (pl.col("kind") != "kernel"))
        .then(pl.lit("copy"))
        .when((named == "other") | ((named == "gemm") & (pl.col("inner") == "convolution")))
        .then(pl.col("inner").fill_null("other"))
        .otherwise(named)
    )


def _share(part: pl.DataFrame, own: Ints) -> None:
    """Fills `own` for the events of one device."""
    low = high = np.empty(0, dtype=np.int64)  # what higher classes cover
    for role in ROLES:
        chosen = part.filter(pl.col("role") == role).sort("ts", "end", descending=[False, True], maintain_order=True)
        if chosen.is_empty():
            continue
        start, end = chosen["ts"].to_numpy(), chosen["end"].to_numpy()
        reach = np.r_[start[0], np.maximum.accumulate(end)[:-1]]
        begin = np.minimum(np.maximum(start, reach), end)  # what of its class came before has had the time until then
        taken = covered_before(low, high, end) - covered_before(low, high, begin)
        own[chosen["row"].to_numpy()] = end - begin - taken
        low, high = union(np.r_[low, start], np.r_[high, end])


def _outermost(calls: pl.DataFrame) -> pl.Series:
    """For each of `host_calls` the position of the outermost operator around it that is no wrapper; null without one."""
    chosen = (calls["kind"] == "cpu_op") & ~calls["name"].str.contains(_WRAPPER)
    top = pl.Series(outermost(calls["caller"].to_numpy(), chosen.to_numpy()), dtype=pl.Int64)
    return pl.select(pl.when(top >= 0).then(top)).to_series()


def _modules(trace: Trace, calls: pl.DataFrame) -> pl.Series:
    """For each of `host_calls` the path of nn.Modules around it, the outermost first; null where there is none."""
    modules = trace.events.filter(pl.col("kind") == "python", pl.col("name").str.starts_with(_MODULE)).with_columns(
        end=pl.col("ts") + pl.col("dur")
    )
    if modules.is_empty():
        return pl.Series([None], dtype=pl.String).new_from_index(0, calls.height)
    columns = ("ts", "end", "rank", "pid", "tid")
    both = pl.concat([modules.select(columns), calls.select(columns)])
    thread = both.select(pl.struct("rank", "pid", "tid").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    caller = callers(both["ts"].to_numpy(), both["end"].to_numpy(), thread)
    is_module = np.arange(both.height) < modules.height
    above = nearest(np.where(is_module, -1, caller), is_module)[modules.height :]
    inside = np.where(caller[: modules.height] >= 0, nearest(caller, is_module)[caller[: modules.height]], -1)
    names = modules["name"].str.strip_prefix(_MODULE).to_list()
    paths: list[str | None] = [None] * modules.height
    for i in np.argsort(modules["ts"].to_numpy(), kind="stable").tolist():  # what is around begins before
        outer = paths[inside[i]] if inside[i] >= 0 else None
        paths[i] = f"{outer} / {names[i]}" if outer else names[i]
    found = pl.Series(above, dtype=pl.Int64)
    return pl.Series(paths, dtype=pl.String).gather(pl.select(pl.when(found >= 0).then(found)).to_series())
