"""Builds an event table in pieces: columns of Python values in, polars frames out, nothing kept twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from rung.trace.table import KINDS, SCHEMA

KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
# Columns that few events have, where a trace has Python frames.
IDS = ("device", "stream", "correlation", "external_id", "bytes", "rank", "sequence")
TEXTS = ("dims", "dtypes", "strides", "concrete")
_PLACES = ("name", "pid", "tid")
_FLUSH = 1 << 17  # events: enough to make polars' own work small, few enough to stay far below the file's size

Array = npt.NDArray[Any]


class _Codes(dict[Any, int]):
    """A number for each distinct text. Texts repeat, so a column of numbers is faster to fill than one of texts."""

    def __init__(self, change: Callable[[Any], str] = str) -> None:
        self.texts: list[str | None] = []
        self.change = change

    def __missing__(self, text: Any) -> int:
        code = len(self.texts)
        self.texts.append(None if text is None else self.change(text))
        self[text] = code
        return code

    def of(self, texts: Sequence[Any]) -> Array:
        if texts and texts.count(texts[0]) == len(texts):  # ids of a process and a thread mostly are
            return np.full(len(texts), self[texts[0]], np.uint32)
        return np.fromiter(map(self.__getitem__, texts), np.uint32, len(texts))

    def decoded(self, codes: Sequence[Array]) -> pl.Series:
        return pl.Series(self.texts, dtype=pl.String).gather(np.concatenate(codes))


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
        self._arrays: dict[str, list[Array]] = {c: [] for c in ("ts", "dur", "kind", *_PLACES, *TEXTS)}
        self._ids: dict[str, list[pl.Series]] = {column: [] for column in IDS}
        self._rows: list[Array] = []
        # Made anew for every stretch: a trace whose names are all different must not be kept twice.
        self._codes = {c: _Codes(self._rename if c == "name" else str) for c in (*_PLACES, *TEXTS)}

    def add(
        self,
        ts: Array,
        dur: Array,
        kind: Array,
        name: Sequence[str],
        pid: Sequence[int | str],
        tid: Sequence[int | str],
        rows: Array,
        ids: Mapping[str, Sequence[int | None]],
        texts: Mapping[str, Sequence[str | None]],
    ) -> None:
        """Appends events: times in ns, `kind` as KIND_CODE numbers.

        rows: positions, ascending, of the events that have any of IDS or TEXTS.
        ids, texts: columns of IDS and TEXTS, of these events alone; an absent column of IDS is null.
        """
        for column, numbers in (("ts", ts), ("dur", dur), ("kind", kind)):
            self._arrays[column].append(numbers)
        for column, values in (("name", name), ("pid", pid), ("tid", tid), *texts.items()):
            self._arrays[column].append(self._codes[column].of(values))
        self._rows.append(rows + self._height)
        for column in IDS:
            known = ids.get(column)
            self._ids[column].append(
                _nulls(column, len(rows)) if known is None else pl.Series(known, dtype=SCHEMA[column])
            )
        self._height += len(kind)
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
        arrays, rows = self._arrays, np.concatenate(self._rows)
        columns = {column: pl.Series(np.concatenate(arrays[column])) for column in ("ts", "dur")}
        columns["kind"] = pl.Series(KINDS, dtype=SCHEMA["kind"]).gather(np.concatenate(arrays["kind"]))
        for column in _PLACES:
            columns[column] = self._codes[column].decoded(arrays[column])
        sparse = {column: pl.concat(self._ids[column], rechunk=True) for column in IDS}
        sparse |= {column: self._codes[column].decoded(arrays[column]) for column in TEXTS}
        for column, known in sparse.items():
            columns[column] = _nulls(column, self._height)
            if known.null_count() < len(known):
                columns[column] = columns[column].scatter(rows, known)
        self._frames.append(pl.DataFrame({column: columns[column] for column in SCHEMA}))
        self._restart()


def _nulls(column: str, height: int) -> pl.Series:
    return pl.Series([None], dtype=SCHEMA[column]).new_from_index(0, height)
