"""Builds an event table in pieces: columns of Python values in, polars frames out, nothing kept twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from rung.trace.table import KINDS, SCHEMA

KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_IDS = ("device", "stream", "correlation", "external_id", "bytes", "rank", "sequence")
_TEXTS = ("name", "pid", "tid", "dims")
RARE = ("dtypes", "strides", "concrete")  # texts that few events have
_CODED = (*_TEXTS, *RARE)
_FLUSH = 1 << 17  # events: enough to make polars' own work small, few enough to stay far below the file's size


class _Codes(dict[Any, int]):
    """A number for each distinct text. Texts repeat, so a column of numbers is faster to fill than one of texts."""

    def __init__(self, change: Callable[[Any], str]) -> None:
        self.texts: list[str | None] = []
        self.change = change

    def __missing__(self, text: Any) -> int:
        code = len(self.texts)
        self.texts.append(None if text is None else self.change(text))
        self[text] = code
        return code


class Columns:
    """Event columns under construction. Every `add` appends the same number of events to each column.

    rename: what to make of a name; called once for each distinct name of a stretch of events.
    """

    def __init__(self, rename: Callable[[str], str] = str) -> None:
        self._rename = rename
        self._frames: list[pl.DataFrame] = []
        self._restart()

    def _restart(self) -> None:
        self._height = 0
        self._parts: dict[str, list[pl.Series]] = {column: [] for column in SCHEMA}
        # Made anew for every stretch: a trace whose names are all different must not be kept twice.
        self._codes = {column: _Codes(self._rename if column == "name" else str) for column in _CODED}

    def add(
        self,
        ts: Sequence[int] | np.ndarray,
        dur: Sequence[int] | np.ndarray,
        kind: Sequence[int],
        name: Sequence[str],
        pid: Sequence[int | str],
        tid: Sequence[int | str],
        ids: Mapping[str, Sequence[int | None]],
        dims: Sequence[str | None] = (),
        rare: Mapping[str, Sequence[str | None]] | None = None,
        rows: Sequence[int] = (),
    ) -> None:
        """Appends events: `kind` as KIND_CODE numbers, `ids` the columns of _IDS; absent ones are null.

        rare: the columns of RARE for the events at `rows`, ascending positions among these events.
        """
        parts, height = self._parts, len(kind)
        self._height += height
        parts["ts"].append(pl.Series(ts, dtype=pl.Int64))
        parts["dur"].append(pl.Series(dur, dtype=pl.Int64))
        parts["kind"].append(pl.Series(kind, dtype=pl.UInt32))
        for column in _IDS:
            known = ids.get(column)
            parts[column].append(
                _filled(None, SCHEMA[column], height) if known is None else pl.Series(known, dtype=SCHEMA[column])
            )
        for column, texts in zip(_TEXTS, (name, pid, tid, dims), strict=True):
            codes = self._codes[column]
            parts[column].append(
                pl.Series(list(map(codes.__getitem__, texts)), dtype=pl.UInt32)
                if len(texts)
                else _filled(codes[None], pl.UInt32(), height)
            )
        for column in RARE:
            codes = self._codes[column]
            if rare:
                filled = np.full(height, codes[None], dtype=np.uint32)
                filled[rows] = list(map(codes.__getitem__, rare[column]))
                parts[column].append(pl.Series(filled))
            else:
                parts[column].append(_filled(codes[None], pl.UInt32(), height))
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
        columns = {column: pl.concat(parts, rechunk=True) for column, parts in self._parts.items() if parts}
        columns["kind"] = pl.Series(KINDS, dtype=SCHEMA["kind"]).gather(columns["kind"])
        for column in _CODED:
            columns[column] = pl.Series(self._codes[column].texts, dtype=pl.String).gather(columns[column])
        self._frames.append(pl.DataFrame({column: columns[column] for column in SCHEMA}))
        self._restart()


def _filled(value: int | None, dtype: pl.DataType, height: int) -> pl.Series:
    return pl.Series([value], dtype=dtype).new_from_index(0, height)
