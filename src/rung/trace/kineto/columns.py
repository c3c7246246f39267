"""Builds an event table in pieces: columns of Python values in, polars frames out, nothing kept twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
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
_SPLIT = 1 << 12  # events: fewer are no stretch of their own

Array = npt.NDArray[Any]


class _Codes(dict[Any, int]):
    """A number for each distinct text. Texts repeat, so a column of numbers is faster to fill than one of texts."""

    def __init__(self, dtype: pl.DataType, change: Callable[[Any], str] = str) -> None:
        self.texts: list[str | None] = []
        self.dtype = dtype
        self.change = change

    def __missing__(self, text: Any) -> int:
        code = len(self.texts)
        self.texts.append(None if text is None else self.change(text))
        self[text] = code
        return code

    def of(self, texts: Sequence[Any]) -> Array:
        # Ids of a process and a thread mostly are one.
        if texts and texts[0] == texts[-1] and texts.count(texts[0]) == len(texts):
            return np.full(len(texts), self[texts[0]], np.uint32)
        return np.fromiter(map(self.__getitem__, texts), np.uint32, len(texts))

    def decoded(self, codes: Array, constants: _Constants) -> pl.Series:
        if len(codes) and (codes == codes[0]).all():
            return constants.of(self.texts[codes[0]], self.dtype, len(codes))
        return pl.Series(self.texts, dtype=self.dtype).gather(codes)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


class _Constants:
    """Columns of one value: all stretches share the memory of the longest."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, pl.DataType], pl.Series] = {}

    def of(self, value: str | None, dtype: pl.DataType, height: int) -> pl.Series:
        known = self._known.get((value, dtype))
        if known is None or len(known) < height:
            # A little longer than needed: no two stretches are of the same length.
            known = pl.Series([value], dtype=dtype).new_from_index(0, height + (height // 8 if height >= _FLUSH else 0))
            self._known[value, dtype] = known
        return known.slice(0, height)


class Columns:
    """Event columns under construction. Every `add` appends the same number of events to each column.

    rename: what to make of a name; called once for each distinct name of a stretch of events.
    """

    def __init__(self, rename: Callable[[str], str] = str) -> None:
        self._rename = rename
        self._frames: list[pl.DataFrame] = []
        self._constants = _Constants()
        self._restart()

    def _restart(self) -> None:
        self._height = 0
        self._bare = True
        self._arrays: dict[str, list[Array]] = {c: [] for c in ("ts", "dur", "kind", *_PLACES, *TEXTS)}
        self._ids: dict[str, list[int | None]] = {column: [] for column in IDS}
        self._rows: list[Array] = []
        # Made anew for every stretch: a trace whose names are all different must not be kept twice.
        change = {"name": self._rename} | dict.fromkeys(TEXTS, _decoded)
        self._codes = {c: _Codes(SCHEMA[c], change.get(c, str)) for c in (*_PLACES, *TEXTS)}

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
        texts: Mapping[str, Sequence[bytes | None]],
    ) -> None:
        """Appends events: times in ns, `kind` as KIND_CODE numbers.

        rows: positions, ascending, of the events that have any of IDS or TEXTS.
        ids, texts: columns of IDS and TEXTS, of these events alone; an absent column of IDS is null. Texts are UTF-8.
        """
        bare = not len(rows)
        if self._height >= _SPLIT and bare != self._bare:
            self._flush()  # a stretch of Python frames alone has next to nothing but times and names
        self._bare = bare and (self._bare or not self._height)
        for column, numbers in (("ts", ts), ("dur", dur), ("kind", kind)):
            self._arrays[column].append(numbers)
        for column, values in (("name", name), ("pid", pid), ("tid", tid), *texts.items()):
            self._arrays[column].append(self._codes[column].of(values))
        self._rows.append(rows + self._height)
        for column in IDS:
            self._ids[column] += ids[column] if column in ids else [None] * len(rows)
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
        arrays = {column: np.concatenate(parts) for column, parts in self._arrays.items()}
        rows = np.concatenate(self._rows)
        columns = {column: pl.Series(arrays[column]) for column in ("ts", "dur")}
        columns["kind"] = pl.Series(KINDS, dtype=SCHEMA["kind"]).gather(arrays["kind"])
        columns["name"] = self._decoded("name", arrays["name"])
        sparse = {column: pl.Series(self._ids[column], dtype=SCHEMA[column]) for column in IDS}
        sparse |= {column: self._decoded(column, arrays[column]) for column in TEXTS}
        for column, known in sparse.items():
            columns[column] = self._constants.of(None, SCHEMA[column], self._height)
            if known.null_count() < len(known):
                columns[column] = columns[column].scatter(rows, known)
        for first, last in pairwise(_parted(arrays["pid"], arrays["tid"])):
            part = {column: values.slice(first, last - first) for column, values in columns.items()}
            part |= {column: self._decoded(column, arrays[column][first:last]) for column in ("pid", "tid")}
            self._frames.append(pl.DataFrame({column: part[column] for column in SCHEMA}))
        self._restart()

    def _decoded(self, column: str, codes: Array) -> pl.Series:
        return self._codes[column].decoded(codes, self._constants)


def _parted(pid: Array, tid: Array) -> list[int]:
    """Where to part a stretch, its begin and end included: a long run of events of one thread has a column of one value."""
    edges = np.r_[0, np.flatnonzero((pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])) + 1, len(pid)]
    long = np.diff(edges) >= _SPLIT
    found: list[int] = np.unique(np.r_[0, edges[:-1][long], edges[1:][long], len(pid)]).tolist()
    return found
