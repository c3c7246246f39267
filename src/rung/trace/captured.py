"""Traces of a capture phase as the appendix of the trace in which the captured graphs are replayed.

vLLM, SGLang and others capture a graph for each batch size when they start, and can record that phase. In the trace of
the work itself a replayed kernel has neither operator nor shapes; the capture trace has both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rung.errors import InputError
from rung.trace.kineto.launched import launched
from rung.trace.open import read
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
                f"{path} is no trace of torch.profiler: --capture takes one of the phase in which graphs were captured."
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
