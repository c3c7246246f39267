"""Every nanosecond of a GPU's busy time, given to exactly one event, so that sums over events are the timeline."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.classified import classified
from rung.analysis.collective_calls import covered_before
from rung.analysis.intervals import Ints, union
from rung.analysis.modules import classes, paths
from rung.analysis.nesting import outermost
from rung.analysis.once import once
from rung.trace.table import Trace

ROLES = ("computation", "communication", "memcpy")  # where classes overlap, the time is the first one's
COLLECTIVES = "(collectives)"
# Host events around operators that are no work of the user's model: what is inside them counts.
_WRAPPER = r"^(Torch-Compiled Region|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction|## Call CompiledFxGraph|DistributedDataParallel|FullyShardedDataParallel|FSDP::)"


@once
def account(trace: Trace) -> pl.DataFrame:
    """The GPU events with `own_ns`, the part of each that is counted for it, and what it belongs to:

    own_ns: of a time that several events cover, computation comes before communication before copies, and within
        these the event that began first. Summed over a rank and device this is busy_ns of `timeline`, and by role its
        computation_ns, exposed_communication_ns and exposed_memcpy_ns, exactly.
    op: the outermost operator, as the model calls it (`aten::linear`, where an inner one may be a vendor's), "(collectives)"
        for these, null where none launched it. dims: the operator's shapes. module, instance: the nn.Modules around the launch, as
        classes (`Encoder / Layer / Linear`) and with their numbers, null where none are recorded.
    category: of `classified`.
    """
    events = classified(trace)
    own = np.zeros(events.height, dtype=np.int64)
    rows = events.select("rank", "device", "role", "ts", "end").with_row_index("row")
    for _, part in rows.group_by("rank", "device", maintain_order=True):
        _share(part, own)
    calls = launching_calls(trace)
    top = _outermost(calls).gather(events["op"])
    collective = pl.when(pl.col("role") == "communication").then(pl.lit(COLLECTIVES))
    return events.with_columns(
        own_ns=pl.Series(own),
        op=collective.otherwise(calls["name"].gather(top).str.strip_prefix("autograd::engine::evaluate_function: ")),
        dims=calls["dims"].gather(top),
        instance=paths(trace),
        module=classes(paths(trace)),
        row_of_op=pl.col("op"),
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
    """For each of `launching_calls` the position of the outermost operator around it that is no wrapper; null without one."""
    chosen = (calls["kind"] == "cpu_op") & ~calls["name"].str.contains(_WRAPPER)
    top = pl.Series(outermost(calls["caller"].to_numpy(), chosen.to_numpy()), dtype=pl.Int64)
    return pl.select(pl.when(top >= 0).then(top)).to_series()
