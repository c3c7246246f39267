"""Links GPU events to their launches by the arrows of a Chrome trace, where correlation ids do not.

Kineto draws an arrow ("ac2g", its id the correlation's) from the start of each launch to the start of each GPU event.
Ids say the same and more: no arrow leads from hipMemsetAsync and hipGraphLaunch on ROCm. So arrows only help where the
ids are missing, as in a file that another tool wrote anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from rung.trace.table import GPU_KINDS, SCHEMA

_PLACE = ["pid", "tid", "ts"]
_TEXTS = ("id", "pid", "tid")
_FLUSH = 1 << 16  # ends of arrows: a frame of few costs more than they do


class Flows:
    """The arrows of one trace: where they begin (phase "s") and end ("f")."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        self._restart()

    def _restart(self) -> None:
        self._ts: list[Sequence[int] | np.ndarray] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in ("phase", *_TEXTS)}

    def add(
        self,
        ts: Sequence[int] | np.ndarray,
        phase: Sequence[str],
        name: Sequence[int | str],
        pid: Sequence[int | str],
        tid: Sequence[int | str],
    ) -> None:
        """Appends ends of arrows: `ts` in ns, `name` what joins two ends."""
        self._ts.append(ts)
        for column, values in zip(self._columns.values(), (phase, name, pid, tid), strict=True):
            column += values
        if len(self._columns["phase"]) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        columns = self._columns
        if columns["phase"]:
            ts = pl.Series(np.concatenate([np.asarray(part, np.int64) for part in self._ts]))
            texts = {name: _texts(columns[name]).cast(SCHEMA.get(name, pl.String())) for name in _TEXTS}
            self._parts.append(pl.DataFrame({"phase": columns["phase"], "ts": ts, **texts}))
        self._restart()

    def linked(self, events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """`events` with the GPU events linked that have no runtime event of their correlation id but an arrow from one,
        and their number.

        Such an event takes over the correlation id of its launch; where the launch has none, both get a negative one.
        """
        self._flush()
        if not any((part["phase"] == "s").any() for part in self._parts):
            return events, 0
        kind, correlation = events["kind"], events["correlation"]
        calling = kind == "runtime"
        known = correlation.filter(calling).drop_nulls().unique()
        losing = kind.is_in(GPU_KINDS) & ~correlation.is_in(known.implode()).fill_null(False)
        if not losing.any() or not calling.any():
            return events, 0
        rows = events.select("correlation", *_PLACE).with_row_index("row")
        calls, lost = rows.filter(calling), rows.filter(losing)
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
