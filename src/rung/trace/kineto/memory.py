"""The `[memory]` instants of torch.profiler: what its allocators gave out and took back."""

from __future__ import annotations

from typing import Any

import polars as pl

from rung.trace.kineto.exact import integer
from rung.trace.kineto.structs import QuickArgs
from rung.trace.table import MEMORY

NAME = "[memory]"
_FLUSH = 1 << 16  # records: lists of Python numbers take five times the memory of a table


class Memory:
    """Those of one trace as they come in."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        self._texts = _Texts()
        self._restart()

    def _restart(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in MEMORY}

    def add_all(self, ts: list[int], places: list[tuple[Any, Any]], args: list[QuickArgs]) -> int:
        """Keeps those of a batch that have what they need, as `add` does; their number. places: their pid and tid."""
        sizes, devices = [a.size for a in args], [a.device_id for a in args]
        if None in sizes or any(device is None or device >= 2**31 for device in devices):
            return sum(self.add(t, pid, tid, a) for t, (pid, tid), a in zip(ts, places, args, strict=True))
        self._extend(
            ts,
            [None if device < 0 else device for device in devices],  # type: ignore[operator]
            [a.address for a in args],
            sizes,
            [a.allocated for a in args],
            [a.reserved for a in args],
            [self._texts[pid] for pid, _ in places],
            [self._texts[tid] for _, tid in places],
            [None] * len(args),
        )
        return len(args)

    def add(self, ts: int, pid: Any, tid: Any, args: Any, rank: int | None = None) -> bool:
        """Keeps one; whether it has what it needs: a number of bytes and a device. Device -1 is the host."""
        size, device = integer(args.bytes if args.size is None else args.size), integer(args.device_id, limit=2**31)
        if size is None or device is None:
            return False
        place = None if device < 0 else device
        totals = integer(args.allocated), integer(args.reserved)
        row = (ts, place, integer(args.address), size, *totals, str(pid), str(tid), rank)
        self._extend(*([value] for value in row))
        return True

    def _extend(self, *columns: list[Any]) -> None:
        """Appends columns in the order of MEMORY."""
        for column, values in zip(self._columns.values(), columns, strict=True):
            column += values
        if len(self._columns["ts"]) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._parts.append(pl.DataFrame(self._columns, schema=MEMORY))
        self._restart()

    def frame(self) -> pl.DataFrame:
        """All that was taken, columns as in MEMORY."""
        self._flush()
        return pl.concat(self._parts)


class _Texts(dict[Any, str]):
    """The text of each id, once."""

    def __missing__(self, value: Any) -> str:
        text = self[value] = str(value)
        return text
