"""What Kineto's events say of collective operations, where they say anything: a sparse table beside the events. And back."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import polars as pl

from rung.trace.kineto.exact import integer
from rung.trace.kineto.text import events_that_say
from rung.trace.table import COLLECTIVES

_SAID = re.compile(b'"Collective name"')


class _Args(msgspec.Struct, gc=False):
    collective: Any = msgspec.field(name="Collective name", default=None)
    external_id: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)
    dtype: Any = None
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    rank: Any = msgspec.field(name="Rung rank", default=None)


class _Event(msgspec.Struct, gc=False):
    args: _Args | None = None


_decode = msgspec.json.Decoder(list[_Event]).decode


class Collectives:
    """Takes those texts that have a collective in them; others cost one search."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def take(self, text: bytes | memoryview) -> None:
        """Reads a JSON list of events. What is no list of events is for the event reader to refuse."""
        events = events_that_say(_SAID, text, _decode)
        self._rows += [
            (
                integer(args.rank, limit=2**31),
                integer(args.external_id),
                integer(args.correlation),
                str(args.collective),
                None if args.group is None else str(args.group),
                None if args.group_ranks is None else str(args.group_ranks),
                integer(args.group_size),
                integer(args.seq),
                None if args.dtype is None else str(args.dtype),
                integer(args.in_elements),
                integer(args.out_elements),
            )
            for event in events
            if (args := event.args) is not None and args.collective is not None
        ]

    def frame(self) -> pl.DataFrame:
        """All that was taken, columns as in COLLECTIVES."""
        return pl.DataFrame(self._rows, schema=COLLECTIVES, orient="row")


def arguments(collectives: pl.DataFrame) -> dict[tuple[str, int | None, int], str]:
    """What the events of a table of COLLECTIVES said, as members of a JSON object, by what they are found by:
    (kind, rank, correlation or external id), kind being "kernel" or "cpu_op"."""
    found: dict[tuple[str, int | None, int], str] = {}
    names = {field.name: field.encode_name for field in msgspec.structs.fields(_Args)}
    said = [name for name in COLLECTIVES if name not in ("rank", "external_id", "correlation")]
    for row in collectives.iter_rows(named=True):
        kernel = row["correlation"] is not None
        number = row["correlation"] if kernel else row["external_id"]
        if number is not None:
            args = {names[name]: row[name] for name in said if row[name] is not None}
            found["kernel" if kernel else "cpu_op", row["rank"], number] = msgspec.json.encode(args).decode()[1:-1]
    return found
