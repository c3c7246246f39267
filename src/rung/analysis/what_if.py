"""How much sooner would a step be over if some of its work took less time?"""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis import analyses
from rung.analysis.critical_path import Pace, solved
from rung.trace.table import Trace

TRIED = 10  # names: each costs a pass over the graph
KINDS = {
    "host": "the host took no time",
    "communication": "collectives took no time once all ranks are there",
    "memcpy": "copies took no time",
}
SCHEMA: dict[str, pl.DataType] = {
    "what": pl.String(),
    "name": pl.String(),
    "path_share": pl.Float64(),
    "saved_share": pl.Float64(),
    "floor_saved_share": pl.Float64(),
}


def what_if(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row for each thing that could take no time, on all ranks at once, the largest saving first.

    All other work keeps its duration, and gaps that nothing explains stay. The figures are of the whole recording.

    what, name: as in `critical_path`; a null name stands for all of that kind.
    path_share: of the critical path.
    saved_share: how much sooner the last GPU event would end, of the recording's GPU window. It is below path_share if other work then
        sets the pace. An upper bound: nothing takes no time.
    floor_saved_share: the same if an operator took the time of its floor in `roofline`; null if it has none.
    """
    path, graph, pace = solved(trace)
    if pace is None:
        return pl.DataFrame(schema=SCHEMA)
    floors = _floors(trace, steps)
    rows = []
    for what in KINDS:
        part = path.filter(pl.col("what") == what)
        if part["path_ns"].sum():
            rows.append(_row(what, None, part, saved(pace, graph.nodes, [(what, None)])))
    names = (
        path.filter(~pl.col("what").is_in(["host", "launch"]))
        .group_by("what", "name", maintain_order=True)
        .agg(pl.col("path_ns", "path_share").sum())
        .filter(pl.col("path_ns") > 0)
        .sort("path_ns", descending=True, maintain_order=True)
    )
    for what, name in names.select("what", "name").head(TRIED).iter_rows():
        part = names.filter(pl.col("what") == what, pl.col("name") == name)
        row = _row(what, name, part, saved(pace, graph.nodes, [(what, name)]))
        if what == "computation" and name in floors:
            row["floor_saved_share"] = saved(pace, graph.nodes, [(what, name)], floors[name])
        rows.append(row)
    table = pl.DataFrame(rows, schema=SCHEMA)
    return table.sort("saved_share", descending=True, maintain_order=True)


def saved(pace: Pace, nodes: pl.DataFrame, which: list[tuple[str, str | None]], factor: float = 0.0) -> float:
    """The share of the time saved if the work of these (what, name or None for any) took `factor` times its time."""
    chosen = np.zeros(nodes.height, dtype=bool)
    for what, name in which:
        kind = nodes["what"] == what
        chosen |= (kind if name is None else kind & (nodes["name"] == name)).to_numpy()
    return max(0.0, 1 - pace.length(np.where(chosen, factor, 1.0)) / max(1, pace.total))


def _floors(trace: Trace, steps: int) -> dict[str, float]:
    """For each operator whose floor is known, its floor as a fraction of its time."""
    if "roofline" not in analyses.ANALYSES:
        return {}
    table = analyses.table("roofline", trace, steps=steps)
    known = table.filter(pl.col("floor_ns").is_not_null()).group_by("op").agg(pl.col("time_ns", "floor_ns").sum())
    known = known.filter(pl.col("time_ns") > 0)
    return {op: min(1.0, floor / time) for op, time, floor in known.select("op", "time_ns", "floor_ns").iter_rows()}


def _row(what: str, name: str | None, part: pl.DataFrame, saving: float) -> dict[str, object]:
    return {"what": what, "name": name, "path_share": part["path_share"].sum(), "saved_share": saving}
