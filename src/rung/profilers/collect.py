"""What a profiler wrote, found and read: one trace of all its runs, the counters of every pass beside the same dispatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl

from rung.errors import InputError
from rung.files import read_text
from rung.profilers.overlay import laid_over, read_samples
from rung.profilers.plan import ANSWER, PLAN, RECORDING, SAMPLES, Run
from rung.profilers.rank_sensors import FOLDER as OF_RANK
from rung.profilers.run import ProfilerFailed, disk_full, tail
from rung.profilers.samples import TABLE
from rung.records.profile import KeptPlan
from rung.trace import Trace, read
from rung.trace.clocks import with_clocks
from rung.trace.ranks import merged, ranks_of, stated
from rung.trace.rocprof import compute, v3_csv
from rung.trace.rows import natural
from rung.trace.table import COUNTERS
from rung.trace.unread import Unread

# The first of these that a run wrote is read; what a tool writes twice is read once.
PATTERNS = {
    "rocprofv3": (
        "*_results.db",
        "*_results.json",
        "*_trace.csv|*_counter_collection.csv",
        "*_results.pftrace",
        "*.csv",
    ),
    "rocprof": ("results.db", "results.json", "results*.csv"),
    "rocprofv2": ("results*.csv", "*.csv"),
    "rocprof-compute": compute.PATTERNS,
    "rocprof-sys": ("rocpd*.db", "perfetto-trace*.proto"),
    "nsys": ("*.sqlite",),
    "ncu": ("ncu.csv",),
    "torch": ("*.json.gz",),
}
# Whose many CSVs are read by naming their folder.
_FOLDERS = ("*_trace.csv|*_counter_collection.csv", *compute.PATTERNS)
STEP = "ProfilerStep#"  # as torch.profiler marks a step
OTHER_PASS = "event of another counter pass of the same program"
STOPPED = "rest of a recording that failed or was stopped"
UNMATCHED = "counter of a dispatch that the first pass did not have"


def collect(profiler: str, output: Path) -> list[Path]:
    """The files that one run left for us: those of the first pattern that has any; empty where it wrote nothing."""
    for pattern in PATTERNS[profiler if profiler in PATTERNS else "rocprof-sys"]:
        found = [path for part in pattern.split("|") for path in output.rglob(part) if path.is_file()]
        # An empty database or a table without rows is what a killed recorder leaves.
        if found := sorted((path for path in found if path.stat().st_size), key=lambda path: natural(str(path))):
            return _roots(found) if pattern in _FOLDERS else found
    return []


def _roots(files: list[Path]) -> list[Path]:
    """The folders that hold them, without those inside of others."""
    folders = sorted({path.parent for path in files})
    return [folder for folder in folders if not any(other in folder.parents for other in folders)]


def read_all(
    folder: Path,
    profiler: str,
    runs: Sequence[Run],
    logs: Sequence[Path],
    *,
    steps_only: bool = False,
    samples: Path | None = None,
) -> Trace:
    """The trace of a plan that was run. Events are those of the first run; ProfilerFailed where a run wrote nothing.

    steps_only: without the start and the warm-up of the program, where it marked its steps; samples: the folder in which ranks left what
    their sensors said.
    """
    traces: list[Trace] = []
    for one, log in zip(runs, logs, strict=True):
        if not one.recorded:
            continue
        paths = collect(profiler, one.output)
        if not paths:
            lines = "".join(f"\n  {line}" for line in tail(log)) or " It printed nothing."
            why = "the program may not have used a GPU, or was ended before the recording was written"
            raise ProfilerFailed(
                f"{profiler} ({one.what}) wrote nothing that could be read below {one.output}: "
                f"{disk_full(one.output) or why}. The last lines of {log}:{lines}"
            )
        traces.append(_together(paths, one.output, all_ranks=profiler == "torch", samples=samples))
    trace = joined(traces)
    if profiler == "torch":
        trace = with_clocks(trace, runs[0].output)
    return replace(within_steps(trace) if steps_only else trace, source=str(folder))


def within_steps(trace: Trace) -> Trace:
    """The trace from the begin of its first marked step to the end of its last; whole where none is marked. The program
    waits for the GPU at both, so that no work of a step lies outside."""
    steps = trace.events.filter(pl.col("kind") == "annotation", pl.col("name").str.starts_with(STEP))
    if not steps.height:
        return trace
    begin, end = steps["ts"].min(), (steps["ts"] + steps["dur"]).max()
    events = trace.events.filter(pl.col("ts") >= begin, pl.col("ts") + pl.col("dur") <= end)
    kernels = events.filter(pl.col("kind") == "kernel", pl.col("correlation").is_not_null())
    dispatches = kernels.select("rank", "correlation").unique()
    counters = trace.counters.join(dispatches, on=["rank", "correlation"], how="semi", nulls_equal=True)
    unread = Unread()
    unread.more(trace.unread, trace.unread_ns)
    outside = int(trace.events["dur"].sum()) - int(events["dur"].sum())
    unread.count("event outside of the recorded steps", trace.events.height - events.height, outside)
    return replace(trace, events=events, counters=counters, unread=dict(unread), unread_ns=dict(unread.ns))


def read_kept(folder: Path) -> Trace:
    """The trace of such a folder, wherever it lies by now. InputError where it is not complete."""
    try:
        plan = msgspec.json.decode(read_text(folder / PLAN), type=KeptPlan)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise InputError(f"{folder / PLAN} is damaged ({error}): name one of the files below it instead.") from None
    runs = []
    for one in plan.runs:
        name = Path(one.output).name  # only ever a folder inside of this one
        output = folder / RECORDING if name == RECORDING else folder / RECORDING / name
        runs.append(Run(one.what, (), output, recorded=one.recorded))
    samples = folder / SAMPLES
    trace = read_all(
        folder, plan.profiler, runs, [folder / PLAN] * len(runs), steps_only=plan.steps_only, samples=samples
    )
    if not (folder / ANSWER).is_file():
        trace = replace(trace, unread=trace.unread | {STOPPED: 1})
    return _sampled(trace, samples / TABLE)


def _sampled(trace: Trace, path: Path) -> Trace:
    """The trace with what the sensors said meanwhile among its curves, where they were read."""
    if not path.is_file():
        return trace
    samples = read_samples(path)
    try:
        return laid_over(trace, samples)
    except InputError:  # on a clock that the trace does not state
        return replace(
            trace, unread=trace.unread | {"sample of the sensors, at no moment of the events": samples.height}
        )


def _together(paths: list[Path], output: Path, all_ranks: bool, samples: Path | None) -> Trace:
    """The files of one run, one a process, as ranks, each with its own samples. all_ranks: none of them is a launcher's."""
    try:
        traces = [_reader(path)(path) for path in paths]
    except InputError as error:
        raise ProfilerFailed(f"what the profiler wrote cannot be read: {error}") from None
    if samples:
        ranks = ranks_of([stated(trace) for trace in traces], [path.name for path in paths])
        folders = [samples / OF_RANK.format(rank=rank) for rank in ranks]
        traces = [_sampled(trace, folder / TABLE) for trace, folder in zip(traces, folders, strict=True)]
    if len(traces) == 1:
        return traces[0]
    # A launcher's own process uses no GPU, and is no rank.
    used = [(t, p) for t, p in zip(traces, paths, strict=True) if all_ranks or t.events["device"].is_not_null().any() or t.counters.height]  # fmt: skip
    if len(used) < 2:
        return used[0][0] if used else traces[0]
    return merged([t for t, _ in used], [p.name for _, p in used], str(output), [])


def _reader(path: Path) -> Callable[[Path], Trace]:
    """Of a folder only the tables are read, whatever else the tool wrote beside them."""
    if not path.is_dir():
        return read
    return compute.read if compute.is_workload(path) else v3_csv.read


def joined(passes: list[Trace]) -> Trace:
    """One trace of several runs of the same program: events of the first, counters of all.

    A dispatch is the n-th of its kernel on its device in its rank of each run; its counters get the correlation that it has in the
    first. Counters of a dispatch that the first run did not have keep none, and are counted in `unread`.
    """
    first, *others = passes
    if not others:
        return first
    unread = Unread()
    unread.more(first.unread, first.unread_ns)
    index = _numbered(
        first.events.filter(pl.col("kind") == "kernel").select("rank", "device", "correlation", kernel="name")
    )
    seen = set(first.counters["counter"].unique())
    counters = [first.counters]
    for other in others:
        kernels = other.events.filter(pl.col("kind") == "kernel").select("rank", "device", "correlation", kernel="name")
        unread.count(OTHER_PASS, other.events.height, int(other.events["dur"].sum()))
        values = other.counters.filter(~pl.col("counter").is_in(list(seen)))
        seen |= set(values["counter"].unique())
        places = _numbered(_dispatches(values, kernels)).rename({"correlation": "theirs"})
        pairs = places.join(
            index.select("rank", "device", "kernel", "nth", "correlation"), on=["rank", "device", "kernel", "nth"],
            how="left", nulls_equal=True,
        )  # fmt: skip
        values = values.rename({"correlation": "theirs"}).join(
            pairs.select("rank", "device", "kernel", "theirs", "correlation"), on=["rank", "device", "kernel", "theirs"],
            how="left", nulls_equal=True,
        )  # fmt: skip
        unread.count(UNMATCHED, values["correlation"].null_count())
        counters.append(values.select(pl.col(name).cast(dtype) for name, dtype in COUNTERS.items()))
    meta = first.meta | {"passes": len(passes)}
    return replace(first, counters=pl.concat(counters), unread=dict(unread), unread_ns=dict(unread.ns), meta=meta)


def _dispatches(values: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """The dispatches of a pass in order: its kernels, or, where none were traced, those that its counters name."""
    if kernels.height:
        return kernels
    return values.select("rank", "device", "correlation", "kernel").unique(maintain_order=True)


def _numbered(dispatches: pl.DataFrame) -> pl.DataFrame:
    return dispatches.sort("rank", "correlation", maintain_order=True, nulls_last=True).with_columns(
        nth=pl.int_range(pl.len()).over("rank", "device", "kernel")
    )
