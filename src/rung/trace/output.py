"""What the writers of traces share: a file is written whole or not at all, gzip where its name says so; and which row belongs to which."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl

from rung.errors import not_written
from rung.trace.ranks import NO_RANK
from rung.trace.table import GPU_KINDS, Trace


@dataclass(frozen=True)
class Note:
    """Something that we have to say about a stretch of a trace: shown on a track of its own. Times in ns."""

    name: str
    ts: int
    dur: int
    text: str = ""


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to. It takes its name when all is written; until then what was there stays. A pipe and the like are
    written to as they are: a file would take their place."""
    file = Path(os.path.realpath(path))  # of a link, and /dev/stdout is one, what it stands for
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        try:
            if path.exists() and not path.is_file():
                with path.open("wb") as pipe:
                    yield pipe
                return
            file.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)  # a stranger's link there would lead elsewhere
            with partial.open("xb") as written:
                if path.name.endswith(".gz"):
                    # Level 6 takes twice the time for a tenth less. No name and time: equal traces, equal bytes.
                    with gzip.GzipFile("", "wb", compresslevel=4, fileobj=written, mtime=0) as packed:
                        yield cast(BinaryIO, packed)
                else:
                    yield written
                written.flush()
                os.fsync(written.fileno())
            os.replace(partial, file)
        except OSError as error:
            raise not_written(path, error, "choose another place") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def launches(trace: Trace) -> pl.DataFrame:
    """Pairs of rows (`launch`, `gpu`), in the order of the GPU events.

    Linked by correlation id within a rank. All kernels of a graph share the row of its launch; where several
    runtime calls carry one id (an HSA call inside a HIP call), the first row is the launch.
    """
    events = trace.events.lazy().with_row_index("row").filter(pl.col("correlation").is_not_null())
    key = (pl.col("rank").fill_null(NO_RANK), pl.col("correlation"))
    calls = (
        events.filter(pl.col("kind") == "runtime")
        .select(*key, launch="row")
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
    )
    return (
        events.filter(pl.col("kind").is_in(GPU_KINDS))
        .select(*key, gpu="row")
        .join(calls, on=["rank", "correlation"], how="inner")
        .select("launch", "gpu")
        .sort("gpu")
        .collect()
    )


def counters_by_row(trace: Trace) -> tuple[dict[int, list[tuple[str, float]]], pl.DataFrame]:
    """The hardware counters of each kernel's row, and those whose dispatch has no row.

    A counter belongs to the first kernel of its rank with its correlation id, device and name.
    """
    if not trace.counters.height:
        return {}, trace.counters
    keys = ["of", "correlation", "device", "kernel"]
    of = pl.col("rank").fill_null(NO_RANK).alias("of")
    kernels = (
        trace.events.with_row_index("row")
        .filter(pl.col("kind") == "kernel")
        .select("row", of, "correlation", "device", kernel="name")
        .unique(keys, keep="first", maintain_order=True)
    )
    joined = trace.counters.with_columns(of).join(kernels, on=keys, how="left", maintain_order="left")
    rows: dict[int, list[tuple[str, float]]] = {}
    for row, name, value in joined.filter(pl.col("row").is_not_null()).select("row", "counter", "value").iter_rows():
        rows.setdefault(row, []).append((name, value))
    return rows, joined.filter(pl.col("row").is_null()).drop("row", "of")
