"""The event table: whatever the format of the file, this is what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

KINDS = (
    "kernel",
    "memcpy",
    "memset",
    "runtime",
    "cpu_op",
    "annotation",
    "gpu_annotation",
    "python",
    "allocation",  # of device memory; a release has the same kind
    "other",
)
GPU_KINDS = ("kernel", "memcpy", "memset")

# Texts of which a trace has few: each is kept once, and an event has four bytes, its number. To polars' `str` they are no texts:
# cast them to pl.String for that.
CODED = pl.Categorical()

SCHEMA: dict[str, pl.DataType] = {
    "ts": pl.Int64(),  # start, ns on the trace's own clock (the file's baseTimeNanoseconds is not added)
    "dur": pl.Int64(),  # ns
    "kind": pl.Enum(KINDS),
    "name": pl.String(),
    "pid": CODED,
    "tid": CODED,
    "device": pl.Int32(),  # position of the GPU as the runtime counts; null on host events
    "stream": pl.Int64(),  # 0 is a stream like any other; null on host events
    "correlation": pl.Int64(),  # joins a GPU event with the runtime call that launched it
    "external_id": pl.Int64(),  # joins a GPU event or runtime call with its cpu_op
    "dims": CODED,  # the JSON of "Input Dims", where shapes were recorded
    "bytes": pl.Int64(),  # size of a memcpy, memset or allocation, where recorded
    "rank": pl.Int32(),  # of the process in its distributed run, where the file or its place in a folder says it
    # Of a cpu_op, as torch.profiler records it with shapes: the JSON of "Input type", "Input Strides", "Concrete Inputs".
    "dtypes": CODED,
    "strides": CODED,
    "concrete": CODED,
    "sequence": pl.Int64(),  # of a cpu_op: the same number on a forward operator and the backward one that it caused
}

# Hardware counters: one row a counter and dispatch.
COUNTERS: dict[str, pl.DataType] = {
    "correlation": pl.Int64(),  # joins the kernel event of the dispatch
    "device": pl.Int32(),
    "kernel": pl.String(),
    "counter": pl.String(),
    "value": pl.Float64(),  # summed over the instances of the counter, as the profiler reports it
    "rank": pl.Int32(),  # of the process, where there are several: they number dispatches alike
}

# Collective operations: one row each time that a host call or a kernel says which one it is.
COLLECTIVES: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "external_id": pl.Int64(),  # joins the events of the same call; of a host call, its own
    "correlation": pl.Int64(),  # joins the kernel that says it itself
    "collective": pl.String(),  # as recorded, "allreduce" or "_allgather_base"
    "group": pl.String(),  # the process group's name, the same on all of its ranks
    "group_ranks": pl.String(),  # as recorded, "[0, 1]", of many ranks only some
    "group_size": pl.Int64(),
    "seq": pl.Int64(),  # the group counts its collectives, on all ranks alike; null where it is not recorded (to torch 2.11 at least)
    "dtype": pl.String(),  # as recorded, "BFloat16"
    "in_elements": pl.Int64(),
    "out_elements": pl.Int64(),
}

# The grids of kernels whose work follows from them, where they are recorded.
GRIDS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "correlation": pl.Int64(),  # joins the kernel
    "grid": pl.String(),  # of its launch, "[8, 342, 1]"
}

# What an allocator says of its memory, one row an allocation or release: torch.profiler with profile_memory.
MEMORY: dict[str, pl.DataType] = {
    "ts": pl.Int64(),  # ns, the clock of the events
    "device": pl.Int32(),  # null: host memory
    "address": pl.Int64(),
    "bytes": pl.Int64(),  # negative: a release
    "allocated": pl.Int64(),  # by tensors, on this device after it
    "reserved": pl.Int64(),  # by the allocator, on this device after it
    "pid": CODED,
    "tid": CODED,
    "rank": pl.Int32(),
}

# What was recorded into graphs: one row a kernel, copy or memset, in the order in which the host captured them.
CAPTURED: dict[str, pl.DataType] = {
    "graph": pl.Int64(),  # counts the captures of all files
    "row": pl.Int64(),  # of the launching call in Captured.events
    "kernel": pl.String(),  # the name, as a GPU event of it has; null where the launch does not say it
    "grid": pl.String(),  # of the launch, "[8, 48, 1]", null where it is not recorded
}

# Values over time, one row a change: each holds until the next row of the same curve.
CURVES: dict[str, pl.DataType] = {
    "name": pl.String(),
    "unit": pl.String(),
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "ts": pl.Int64(),  # ns, the clock of the events
    "value": pl.Float64(),
}


@dataclass(frozen=True)
class Captured:
    """Traces of the phase in which a program captured its graphs: what the kernels of a replay were launched by.

    events: of the host, columns as in SCHEMA. Each file has process ids and sequence numbers of its own.
    launches: what went into the graphs, columns as in CAPTURED.
    sources: the path of the file that each graph is of, by its number.
    process: who captured each graph, by its number: the process id and the start of the clock, as the file states them.
    asked: the user named these files.
    """

    events: pl.DataFrame
    launches: pl.DataFrame
    sources: tuple[str, ...]
    process: tuple[tuple[str, str], ...]
    asked: bool = True


@dataclass(frozen=True)
class Trace:
    """The complete events of one trace: of one file, or of all the files of one run.

    events: one row an event, in file order, columns as in SCHEMA; all times are integer nanoseconds.
    devices: the file's deviceProperties as written. Their `id` does not name the `device` of an event
        (on ROCm it counts differently): join by position.
    source: the path that was read.
    unread: events that are not in the table, counted by reason. unread_ns: their durations together, ns, by reason, where
        they have readable ones.
    format: what wrote it, as in "kineto", "rocprofv3-csv", "rocpd", "nsys".
    counters: hardware counters, columns as in COUNTERS; empty where none were collected.
    collectives: what events say of collective operations, columns as in COLLECTIVES; empty where they say nothing.
    grids: of some kernels, columns as in GRIDS; empty where there are none of these.
    memory: the allocator's records, columns as in MEMORY; empty where none were made.
    curves: values over time that were recorded beside the events, columns as in CURVES; empty where there are none.
    meta: facts about the run that the file states (host, command, tool version, ranks), secrets redacted.
    captured: the traces of the phase in which the graphs that are replayed here were captured; None without any.
    """

    events: pl.DataFrame
    devices: list[dict[str, Any]] = field(default_factory=list)
    source: str = ""
    unread: dict[str, int] = field(default_factory=dict)
    format: str = "kineto"
    counters: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNTERS))
    collectives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COLLECTIVES))
    grids: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GRIDS))
    meta: dict[str, Any] = field(default_factory=dict)
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MEMORY))
    curves: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CURVES))
    unread_ns: dict[str, int] = field(default_factory=dict)
    captured: Captured | None = None

    @property
    def serialized(self) -> bool:
        """Whether kernels ran one at a time, because their hardware counters were read: the times of the GPU are not those of a run
        without. `rung profile` takes them from a run of its own, and says in how many passes the counters were read."""
        return not self.counters.is_empty() and not self.events.is_empty() and "passes" not in self.meta
