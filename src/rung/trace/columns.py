"""Builds an event table in pieces: columns of Python values in, polars frames out, nothing kept twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from rung.trace.table import KINDS, SCHEMA

KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_FLUSH = 1 << 17  # events: enough to make polars' own work small, few enough to stay far below the file's size


class _Codes(dict[Any, int]):
    """A number for each distinct text. Names repeat, so a table of numbers is faster to fill than one of texts."""

    def __init__(self, change: Callable[[str], str] | None = None) -> None:
        self.texts: list[str | None] = []
        self.change = change

    def __missing__(self, text: Any) -> int:
        code = len(self.texts)
        self.texts.append(self.change(text) if self.change and text is not None else text)
        self[text] = code
        return code


class Columns:
    """Event columns under construction. Every `add` appends the same number of events to each column.

    rename: what to make of a name; called once for each distinct name of a stretch of events.
    """

    def __init__(self, rename: Callable[[str], str] | None = None) -> None:
        self._rename = rename
        self._frames: list[pl.DataFrame] = []
        self._restart()

    def _restart(self) -> None:
        self._height = 0
        self._times: dict[str, list[Any]] = {"ts": [], "dur": []}
        self._lists: dict[str, list[Any]] = {
            column: [] for column in ("kind", "pid", "tid", "device", "stream", "correlation", "external_id", "bytes")
        }
        # Made anew for every stretch: a trace whose names are all different must not be kept twice.
        self._codes = {"name": _Codes(self._rename), "dims": _Codes()}
        self._coded: dict[str, list[int]] = {"name": [], "dims": []}

    def add(
        self,
        ts: Sequence[int] | np.ndarray,
        dur: Sequence[int] | np.ndarray,
        kind: Iterable[int],
        name: Iterable[str],
        pid: Iterable[int | str],
        tid: Iterable[int | str],
        ids: dict[str, Iterable[int | None]],
        dims: Iterable[str | None],
    ) -> None:
        """Appends events: `kind` as KIND_CODE numbers, `ids` the columns device to bytes; absent ones are null."""
        self._times["ts"].append(np.asarray(ts, dtype=np.int64))
        self._times["dur"].append(np.asarray(dur, dtype=np.int64))
        height = len(self._times["ts"][-1])
        self._height += height
        lists = self._lists
        lists["kind"].extend(kind)
        lists["pid"].extend(pid)
        lists["tid"].extend(tid)
        for column in ("device", "stream", "correlation", "external_id", "bytes"):
            lists[column].extend(ids.get(column) or [None] * height)
        self._coded["name"].extend(map(self._codes["name"].__getitem__, name))
        self._coded["dims"].extend(map(self._codes["dims"].__getitem__, dims))
        if self._height >= _FLUSH:
            self._flush()

    def frame(self) -> pl.DataFrame:
        """All that was added, columns as in SCHEMA."""
        self._flush()
        if not self._frames:
            return pl.DataFrame(schema=SCHEMA)
        return pl.concat(self._frames, rechunk=False)

    def _flush(self) -> None:
        if not self._height:
            return
        columns = {column: pl.Series(np.concatenate(parts)) for column, parts in self._times.items()}
        lists = self._lists
        kinds = pl.Series(KINDS, dtype=SCHEMA["kind"])
        columns["kind"] = kinds.gather(pl.Series(lists["kind"], dtype=pl.UInt32))
        for column in ("pid", "tid"):
            columns[column] = _texts(lists[column])
        for column in ("device", "stream", "correlation", "external_id", "bytes"):
            columns[column] = pl.Series(lists[column], dtype=SCHEMA[column])
        for column, codes in self._coded.items():
            texts = pl.Series(self._codes[column].texts, dtype=pl.String)
            columns[column] = texts.gather(pl.Series(codes, dtype=pl.UInt32))
        columns["rank"] = pl.Series([None], dtype=SCHEMA["rank"]).new_from_index(0, self._height)
        self._frames.append(pl.DataFrame({column: columns[column] for column in SCHEMA}))
        self._restart()


def _texts(values: list[int | str]) -> pl.Series:
    """Process and thread ids as text: nearly always numbers, which polars turns into text faster than Python."""
    try:
        return pl.Series(values, dtype=pl.Int64).cast(pl.String)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series([str(value) for value in values], dtype=pl.String)
