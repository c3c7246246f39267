"""Traces of a capture phase as the appendix of the trace in which the captured graphs are replayed.

vLLM, SGLang and others capture a graph for each batch size when they start, and can record that phase. In the trace of
the work itself a replayed kernel has neither operator nor shapes; the capture trace has both.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from rung.errors import InputError
from rung.trace.kineto.exact import integer
from rung.trace.kineto.grids import as_text
from rung.trace.kineto.text import CutOff, NotATrace, Text, TooLong
from rung.trace.names import Demangler
from rung.trace.open import read
from rung.trace.source import Source
from rung.trace.table import CAPTURED, CODED, GPU_KINDS, Captured, Trace

COPY, MEMSET = "(copy)", "(memset)"  # stand for the kernel where a graph copies or fills memory
_BEGIN, _END = r"(?i)StreamBeginCapture", r"(?i)StreamEndCapture"
_LAUNCH = r"^(?:hip|cuda|cu)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel"
_COPY, _MEMSET = r"^(?:hip|cuda|cu)Memcpy", r"^(?:hip|cuda|cu)Memset"
_APART = 1 << 48  # between the sequence numbers of two files
_NAMED = re.compile("(?i)capture")
# Files that are looked into without being asked to: of so many bytes, and so many of them.
_LARGEST, _MOST = 64_000_000, 32


def read_captures(paths: Sequence[Path], *, max_bytes: int | None = None, cache: bool = True) -> Captured:
    """The graphs that these files saw captured. Raises InputError where one cannot be read or saw none."""
    events: list[pl.DataFrame] = []
    launches: list[pl.DataFrame] = []
    sources: list[str] = []
    process: list[tuple[str, str]] = []
    height = 0
    for number, path in enumerate(paths, 1):
        trace = read(path, max_bytes=max_bytes, cache=cache)
        if trace.format != "kineto":
            raise InputError(
                f"{path} is not a trace of torch.profiler: --capture takes one of the phase in which graphs were captured."
            )
        graphs = _graphs(trace, path, max_bytes)
        if not graphs:
            raise InputError(
                f"{path} has no capture of a graph in it (no ...StreamBeginCapture): give the trace of the phase in which "
                "the program captured its graphs."
            )
        host = ~pl.col("kind").is_in([*GPU_KINDS, "gpu_annotation", "other", "allocation"])
        own = trace.events.with_row_index("row").filter(host)
        for rows, pid in graphs:
            placed = own.select("row", at=pl.int_range(pl.len()) + height).join(rows, on="row", maintain_order="right")
            launches.append(placed.select(pl.lit(len(sources)).alias("graph"), row="at", kernel="kernel", grid="grid"))
            sources.append(str(path))
            process.append((pid, str(trace.meta.get("baseTimeNanoseconds", ""))))
        events.append(
            own.drop("row").with_columns(
                pl.format("capture {}: {}", pl.lit(number), "pid").cast(CODED).alias("pid"),
                pl.col("sequence") + number * _APART,
            )
        )
        height += own.height
    cast = [pl.col(name).cast(dtype) for name, dtype in CAPTURED.items()]
    return Captured(pl.concat(events), pl.concat(launches).select(cast), tuple(sources), tuple(process))


def candidates(trace: Trace) -> list[Path]:
    """Files beside a trace that replays graphs which may have seen their capture: they say so in their names."""
    path = Path(trace.source)
    if trace.format != "kineto" or not path.is_file():
        return []
    runtime = (
        trace.events.lazy().filter(pl.col("kind") == "runtime").select(pl.col("name").str.contains("GraphLaunch").any())
    )
    if not runtime.collect().item():
        return []
    try:
        beside = sorted(file for file in path.parent.iterdir() if _NAMED.search(file.name) and file.is_file())
        return [file for file in beside if not file.samefile(path) and file.stat().st_size <= _LARGEST][:_MOST]
    except OSError:
        return []


def _graphs(trace: Trace, path: Path, max_bytes: int | None) -> list[tuple[pl.DataFrame, str]]:
    """For each capture what was launched in it (rows of the trace's events, kernel, grid), and the process id."""
    rows = trace.events.with_row_index("row")
    runtime = rows.filter(pl.col("kind") == "runtime").sort("ts", maintain_order=True)
    begins, ends = (runtime.filter(pl.col("name").str.contains(pattern)) for pattern in (_BEGIN, _END))
    if begins.is_empty() or ends.is_empty():
        return []
    ran = trace.events.filter(pl.col("kind").is_in(GPU_KINDS)).select("correlation").unique()
    name = pl.col("name")
    given = (
        runtime.filter(name.str.contains(f"{_LAUNCH}|{_COPY}|{_MEMSET}"))
        .join(ran, on="correlation", how="anti", maintain_order="left")  # what ran at once is in no graph
        .unique("correlation", keep="first", maintain_order=True)
        .join(launched(path, max_bytes), on="correlation", how="left", maintain_order="left")
        .with_columns(
            kernel=pl.when(name.str.contains(_COPY))
            .then(pl.lit(COPY))
            .when(name.str.contains(_MEMSET))
            .then(pl.lit(MEMSET))
            .otherwise("kernel")
        )
    )
    found = []
    for pid, tid, start in begins.select("pid", "tid", "ts").iter_rows():
        after = ends.filter(pl.col("pid") == pid, pl.col("tid") == tid, pl.col("ts") > start)["ts"]
        if after.is_empty():
            continue
        inside = given.filter(pl.col("pid") == pid, pl.col("ts").is_between(start, after[0]))
        if inside.height:
            found.append((inside.select("row", "kernel", "grid"), pid))
    return found


LAUNCHES: dict[str, pl.DataType] = {"correlation": pl.Int64(), "kernel": pl.String(), "grid": pl.String()}


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
    """Which kernel each launch asks for, one row a launch that says so, columns as in LAUNCHES: in a capture there is no GPU event that would.
    Kineto on ROCm writes the kernel's name and grid at a launch; on CUDA it does not. The file that `read` has read is read again."""
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
    return pl.DataFrame(rows, schema=LAUNCHES, orient="row").unique("correlation", keep="first", maintain_order=True)
