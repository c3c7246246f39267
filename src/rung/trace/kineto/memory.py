"""The `[memory]` instants of torch.profiler: what its allocators gave out and took back."""

from __future__ import annotations

from typing import Any

import polars as pl

from rung.trace.kineto.exact import integer
from rung.trace.kineto.structs import QuickArgs
from rung.trace.table import MEMORY

NAME = "[memory]"


class Memory:
    """Those of one trace as they come in."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add_all(self, ts: list[int], places: list[tuple[Any, Any]], args: list[QuickArgs]) -> int:
        """Keeps those of a batch that have what they need, as `add` does; their number. places: their pid and tid."""
        before = len(self._rows)
        if all(a.size is not None and a.device_id is not None and a.device_id < 2**31 for a in args):
            self._rows += [
                (
                    t,
                    None if (a.device_id or 0) < 0 else a.device_id,
                    a.address,
                    a.size,
                    a.allocated,
                    a.reserved,
                    str(pid),
                    str(tid),
                    None,
                )
                for t, (pid, tid), a in zip(ts, places, args, strict=True)
            ]
        else:
            for t, (pid, tid), a in zip(ts, places, args, strict=True):
                self.add(t, pid, tid, a)
        return len(self._rows) - before

    def add(self, ts: int, pid: Any, tid: Any, args: Any, rank: int | None = None) -> bool:
        """Keeps one; whether it has what it needs: a number of bytes and a device. Device -1 is the host."""
        size, device = integer(args.bytes if args.size is None else args.size), integer(args.device_id, limit=2**31)
        if size is None or device is None:
            return False
        place = None if device < 0 else device
        totals = integer(args.allocated), integer(args.reserved)
        self._rows.append((ts, place, integer(args.address), size, *totals, str(pid), str(tid), rank))
        return True

    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self._rows, schema=MEMORY, orient="row")
