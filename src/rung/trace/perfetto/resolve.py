"""Looks up what the numbers in a batch stand for: the names, categories and annotations of its slices and instants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.trace.perfetto.batch import DOUBLE, INT, INTERNED, NONE, TEXT, UINT, Annotations, Batch
from rung.trace.perfetto.protobuf import double, text
from rung.trace.perfetto.split import Bools, Ints, Keys
from rung.trace.perfetto.state import SLOTS, Sequence

_LARGEST_TABLE = 1_000_000  # annotation names of all sequences, by number


@dataclass(frozen=True)
class Resolved:
    """Columns of one row an event."""

    categories: list[str]
    names: list[str]
    found: dict[int, list[Any]]  # the annotations of a slot, None for an event without it; only slots that occur
    counters: list[tuple[int, str, float]]  # annotations that are doubles: of which event, name and value


def resolve(batch: Batch, rows: Ints, sequence: Ints, sequences: list[Sequence]) -> Resolved | None:
    """rows: packets of the events. sequence: the position of each in `sequences`.

    None where the numbers of annotation names are too large for a table.
    """
    categories = [one.categories for one in sequences]
    names = [one.names for one in sequences]
    event = np.full(len(batch.starts), NONE)
    event[rows] = np.arange(len(rows))
    annotations = batch.annotations.where(event[batch.annotations.packet] >= 0)
    owner = event[annotations.packet]
    slot = _slots(batch.content, annotations, sequence[owner], sequences)
    if slot is None:
        return None
    return Resolved(
        _names(batch.content, (batch.category, batch.category_at, batch.category_end), rows, sequence, categories),
        _names(batch.content, (batch.name, batch.name_at, batch.name_end), rows, sequence, names),
        _found(batch.content, annotations, owner, slot, sequence, sequences),
        _counters(batch.content, annotations.where(annotations.key == DOUBLE), event, sequence, sequences),
    )


def _names(
    content: bytes, name: tuple[Ints, Ints, Ints], rows: Ints, sequence: Ints, tables: list[dict[int, str]]
) -> list[str]:
    iid, at, end = (column[rows] for column in name)
    found = _texts(iid, sequence, tables, "")
    for row in np.flatnonzero(at >= 0).tolist():
        found[row] = text(content, int(at[row]), int(end[row]))
    return found


def _texts(iid: Ints, sequence: Ints, tables: list[dict[int, str]], missing: Any) -> list[Any]:
    if len(tables) == 1:
        get = tables[0].get
        return [get(number, missing) for number in iid.tolist()]
    return [tables[which].get(number, missing) for which, number in zip(sequence.tolist(), iid.tolist(), strict=True)]


def _slots(
    content: bytes, annotations: Annotations, sequence: Ints, sequences: list[Sequence]
) -> npt.NDArray[np.int16] | None:
    """The slot that each annotation fills, or NONE."""
    largest = int(annotations.iid.max(initial=0))
    if (largest + 2) * len(sequences) > _LARGEST_TABLE:
        return None
    table = np.full((len(sequences), largest + 2), NONE, dtype=np.int16)  # the last column is of names in full
    for which, one in enumerate(sequences):
        for iid in one.annotations:
            if iid <= largest:
                table[which, iid] = one.slot(iid)
    slot = table[sequence, annotations.iid]
    for at in np.flatnonzero((annotations.iid == NONE) & (annotations.key != DOUBLE)).tolist():
        slot[at] = SLOTS.get(text(content, int(annotations.name_at[at]), int(annotations.name_end[at])), NONE)
    return slot


def _found(
    content: bytes,
    annotations: Annotations,
    owner: Ints,
    slot: npt.NDArray[np.int16],
    sequence: Ints,
    sequences: list[Sequence],
) -> dict[int, list[Any]]:
    strings = [one.strings for one in sequences]
    readable = np.isin(annotations.key, (UINT, INT, TEXT, INTERNED))
    found: dict[int, list[Any]] = {}
    for number in np.flatnonzero(np.bincount(slot[(slot >= 0) & readable])).tolist():
        chosen = np.flatnonzero((slot == number) & readable)
        rows, key, value = owner[chosen], annotations.key[chosen], annotations.value[chosen]
        if _plain_integers(rows, key, value, len(sequence)):
            integers = np.empty(len(sequence), dtype=np.int64)
            integers[rows] = value
            found[number] = integers.tolist()
            continue
        values, known = _values(content, key, value, annotations.end[chosen], sequence[rows], strings)
        column: npt.NDArray[np.object_] = np.full(len(sequence), None, dtype=object)
        column[rows[known]] = values[known]  # the last one where an event has several
        found[number] = column.tolist()
    return found


def _plain_integers(rows: Ints, key: Keys, value: Ints, events: int) -> bool:
    """Whether each event has the annotation, as a number of at most 63 bits: they need no objects."""
    filled = np.zeros(events, dtype=np.bool_)
    filled[rows] = True
    return bool(filled.all() and ((key == INT) | (key == UINT) & (value >= 0)).all())


def _values(
    content: bytes, key: Keys, value: Ints, end: Ints, sequence: Ints, strings: list[dict[int, str]]
) -> tuple[npt.NDArray[np.object_], Bools]:
    """The value of each annotation, and whether it is known: the text of an interned one may not be."""
    values: npt.NDArray[np.object_] = np.full(len(sequence), None, dtype=object)
    known = np.ones(len(sequence), dtype=np.bool_)
    chosen = key == UINT
    values[chosen] = value[chosen].view(np.uint64)
    chosen = key == INT
    values[chosen] = value[chosen]
    chosen = key == TEXT
    if chosen.any():
        spans = zip(value[chosen].tolist(), end[chosen].tolist(), strict=True)
        values[chosen] = [text(content, at, stop) for at, stop in spans]
    chosen = key == INTERNED
    if chosen.any():
        values[chosen] = _texts(value[chosen], sequence[chosen], strings, None)
        known[chosen] = [value is not None for value in values[chosen]]
    return values, known


def _counters(
    content: bytes, annotations: Annotations, event: Ints, sequence: Ints, sequences: list[Sequence]
) -> list[tuple[int, str, float]]:
    order = np.argsort(annotations.packet, kind="stable")
    found = []
    for at in order.tolist():
        row, iid = int(event[annotations.packet[at]]), int(annotations.iid[at])
        if iid == NONE:
            name = text(content, int(annotations.name_at[at]), int(annotations.name_end[at]))
        else:
            name = sequences[sequence[row]].annotations.get(iid, "")
        found.append((row, name, double(content, int(annotations.value[at]))))
    return found
