"""What Kineto's events say of collective operations, where they say anything: a sparse table beside the events."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import polars as pl

from rung.trace.kineto.exact import integer
from rung.trace.table import COLLECTIVES

_SAID = re.compile(b'"Collective name"')


class _Args(msgspec.Struct, gc=False):
    collective: Any = msgspec.field(name="Collective name", default=None)
    external_id: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
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
    """Takes what the event reader takes; most texts have no collective in them and cost one search."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def take(self, text: bytes | memoryview) -> None:
        """Reads a JSON list of events. What is no list of events is for the event reader to refuse."""
        if not _SAID.search(text):
            return
        try:
            events = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self._rows += [
            (
                integer(args.rank, limit=2**31),
                integer(args.external_id),
                integer(args.correlation),
                str(args.collective),
                None if args.group is None else str(args.group),
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
