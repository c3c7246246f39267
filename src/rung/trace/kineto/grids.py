"""The grids of kernels whose work follows from them (analysis/costs/expert_kernels.py): a sparse table beside the events.

Kineto writes a grid at the kernel on CUDA, and at its launch on ROCm, there beside the kernel's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import polars as pl

from rung.trace.kineto.exact import integer
from rung.trace.kineto.text import events_that_say
from rung.trace.table import GRIDS

_BEGINNINGS = ("bmm_", "_matmul_ogs_")
_SAID = re.compile(rb'"(?:%s)' % "|".join(_BEGINNINGS).encode())
_QUOTED = tuple(f'"{beginning}'.encode() for beginning in _BEGINNINGS)


class _Args(msgspec.Struct, gc=False):
    correlation: Any = None
    kernel: Any = None
    grid: Any = None
    rank: Any = msgspec.field(name="Rung rank", default=None)


class _Event(msgspec.Struct, gc=False):
    name: Any = None
    args: _Args | None = None


_decode = msgspec.json.Decoder(list[_Event]).decode


def wanted(names: Iterable[str], quoted: Iterable[bytes | msgspec.Raw]) -> bool:
    """Whether any is the name of such a kernel; quoted: names as JSON."""
    return any(name.startswith(_BEGINNINGS) for name in set(names)) or any(
        name.startswith(_QUOTED) for name in set(map(bytes, quoted))
    )


class Grids:
    """Those of one trace as they come in."""

    def __init__(self) -> None:
        self._rows: list[tuple[int | None, int, str]] = []

    def take(self, text: bytes | memoryview) -> None:
        """Reads a JSON list of events that may have such kernels. What is no list of events is for the event reader to refuse."""
        events = events_that_say(_SAID, text, _decode)
        for event in events:
            args = event.args
            if args is None or not any(
                isinstance(name, str) and name.startswith(_BEGINNINGS) for name in (event.name, args.kernel)
            ):
                continue
            correlation, grid = integer(args.correlation), as_text(args.grid)
            if correlation is not None and grid is not None:
                self._rows.append((integer(args.rank, limit=2**31), correlation, grid))

    def frame(self) -> pl.DataFrame:
        """All that was taken, columns as in GRIDS; of several grids with one correlation id, the first."""
        return pl.DataFrame(self._rows, schema=GRIDS, orient="row").unique(
            ["rank", "correlation"], keep="first", maintain_order=True
        )


def as_text(value: Any) -> str | None:
    """A grid as it stands in a table, None where it is none."""
    whole = (
        isinstance(value, list) and len(value) == 3 and all(type(size) is int and 0 < size < 2**31 for size in value)
    )
    return str(value) if whole else None
