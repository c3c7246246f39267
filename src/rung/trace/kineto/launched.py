"""Which kernel each launch asks for, where the launch itself says it: in a capture there is no GPU event that would.

Kineto on ROCm writes the kernel's name and grid at a launch; on CUDA it does not.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from rung.trace.kineto.exact import integer
from rung.trace.kineto.grids import as_text
from rung.trace.kineto.text import CutOff, NotATrace, Text, TooLong
from rung.trace.names import Demangler
from rung.trace.source import Source

SCHEMA: dict[str, pl.DataType] = {"correlation": pl.Int64(), "kernel": pl.String(), "grid": pl.String()}


class _Args(msgspec.Struct, gc=False):
    correlation: Any = None
    kernel: Any = None
    grid: Any = None


class _Event(msgspec.Struct, gc=False):
    cat: Any = None
    args: _Args | None = None


_decode = msgspec.json.Decoder(list[_Event]).decode
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime")


def launched(path: str | Path, max_bytes: int | None = None) -> pl.DataFrame:
    """One row a launch that names its kernel, columns as in SCHEMA; of a file that `read` has read, it reads it again."""
    rows: list[tuple[int | None, str, str | None]] = []
    readable = Demangler()

    def take(text: bytes | memoryview) -> None:
        for event in _decode(text):
            args = event.args
            if args is not None and isinstance(args.kernel, str) and event.cat in _RUNTIME:
                rows.append((integer(args.correlation), readable(args.kernel), as_text(args.grid)))

    source = Source(path, partial=True, max_bytes=max_bytes)
    with contextlib.suppress(TooLong, NotATrace, CutOff):  # what is whole before the damage was taken
        Text(iter(source), partial=True, longest=source.max_value).read(take)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").unique("correlation", keep="first", maintain_order=True)
