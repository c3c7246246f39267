"""Links GPU events to their launches by the arrows of a Chrome trace, where correlation ids do not.

Kineto draws an arrow ("ac2g", its id the correlation's) from the start of each launch to the start of each GPU event.
Ids say the same and more: no arrow leads from hipMemsetAsync and hipGraphLaunch on ROCm. So arrows only help where the
ids are missing, as in a file that another tool wrote anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rung.trace.table import GPU_KINDS

_PLACE = ["pid", "tid", "ts"]


class Flows:
    """The arrows of one trace: where they begin (phase "s") and end ("f")."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def add(
        self,
        ts: Sequence[int] | np.ndarray,
        phase: Sequence[str],
        name: Sequence[int | str],
        pid: Sequence[int | str],
        tid: Sequence[int | str],
    ) -> None:
        """Appends ends of arrows: `ts` in ns, `name` what joins two ends."""
        columns = {"id": _texts(name), "pid": _texts(pid), "tid": _texts(tid)}
        self._parts.append(pl.DataFrame({"phase": phase, "ts": pl.Series(ts, dtype=pl.Int64), **columns}))

    def linked(self, events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """`events` with the GPU events linked that have no runtime event of their correlation id but an arrow from one,
        and their number.

        Such an event takes over the correlation id of its launch; where the launch has none, both get a negative one.
        """
        if not any((part["phase"] == "s").any() for part in self._parts):
            return events, 0
        rows = events.lazy().with_row_index("row").select("row", "kind", "correlation", *_PLACE)
        calls = rows.filter(pl.col("kind") == "runtime").collect()
        known = calls["correlation"].drop_nulls().unique()
        lost = (
            rows.filter(pl.col("kind").is_in(GPU_KINDS))
            .filter(pl.col("correlation").is_null() | ~pl.col("correlation").is_in(known.implode()))
            .collect()
        )
        if lost.is_empty() or calls.is_empty():
            return events, 0
        pairs = self._pairs(lost, calls)
        if pairs.is_empty():
            return events, 0
        lowest = min(0, int(events["correlation"].min() or 0))  # type: ignore[arg-type]
        number = pl.col("correlation").fill_null(lowest - pl.col("launch").rank("dense").cast(pl.Int64))
        pairs = pairs.with_columns(number)
        changed = pl.concat([pairs.select("row", "correlation"), pairs.select(row="launch", correlation="correlation")])
        changed = changed.unique("row").sort("row")
        correlation = events["correlation"].rechunk().scatter(changed["row"], changed["correlation"])
        return events.with_columns(correlation), pairs.height

    def _pairs(self, lost: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
        """`row` of the GPU event, row `launch` of its launch and its correlation id, for each arrow between the two."""
        flows = pl.concat(self._parts)
        begins = flows.filter(pl.col("phase") == "s").unique("id", keep="first", maintain_order=True)
        ends = flows.filter(pl.col("phase") == "f").unique(_PLACE, keep="first", maintain_order=True)
        launches = calls.unique(_PLACE, keep="first", maintain_order=True).rename({"row": "launch"})
        return (
            lost.select("row", *_PLACE)
            .join(ends.select("id", *_PLACE), on=_PLACE)
            .join(begins.select("id", launch_pid="pid", launch_tid="tid", launch_ts="ts"), on="id")
            .join(launches, left_on=["launch_pid", "launch_tid", "launch_ts"], right_on=_PLACE)
            .select("row", "launch", "correlation")
        )


def _texts(values: Sequence[int | str]) -> pl.Series:
    try:
        return pl.Series(values, dtype=pl.Int64).cast(pl.String)
    except (TypeError, OverflowError):
        return pl.Series(list(map(str, values)), dtype=pl.String)
