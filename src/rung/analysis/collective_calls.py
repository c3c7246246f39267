"""The collective operations of every rank, one row a rank and operation: which, how large, when, hidden behind what."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import polars as pl

from rung.analysis.calls import host_calls, launching_calls
from rung.analysis.communicators import communicating_kernel, communicating_op
from rung.analysis.costs.call import PRECISIONS, Unknown, read_call
from rung.analysis.intervals import Ints, union
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.steps import step_at
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),  # null where the collective ran on the host (gloo)
    "stream": pl.Int64(),
    "step": pl.Int64(),  # the profiler's number of the step that started it, null where no step is marked
    "group": pl.String(),  # "" where the trace does not say
    "group_ranks": pl.String(),
    "group_size": pl.Int64(),
    "collective": pl.String(),  # one of KINDS, or as recorded
    "seq": pl.Int64(),
    "turn": pl.Int64(),  # counts a rank's collectives of one step, group and kind, for those without seq
    "dtype": pl.String(),
    "size_bytes": pl.Int64(),  # as nccl-tests counts it, null where unknown
    "ts": pl.Int64(),
    "end": pl.Int64(),
    "dur_ns": pl.Int64(),
    "hidden_ns": pl.Int64(),  # of dur_ns, while the same GPU (or host process) also computed
    "name": pl.String(),  # of the kernel
    "algorithm": pl.String(),  # as in collectives.toml, null where the kernel's name does not say it
}

# As frameworks and libraries call them → one name.
_KINDS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherv": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "sendrecv": "send_recv",
}
POINT_TO_POINT = ("send", "recv", "send_recv")  # between two ranks, each of which calls it by another name
# Every rank of these ends them when the last one has arrived; of the others, some leave early.
JOINING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")

_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "half": 2, "bfloat16": 2, "short": 2, "float": 4, "int": 4, "double": 8, "long": 8, "complexfloat": 8,
    "complexdouble": 16,
}  # fmt: skip
_IN_CALL = r"^(?:nccl|pnccl)(AllReduce|AllGatherv?|ReduceScatter|Broadcast|Reduce|AllToAllv?|Gather|Scatter|Send|Recv)"
_ON_HOST = r"^(?:gloo|mpi|ucc):(\w+)"


def plain(name: str) -> str:
    """One name for what frameworks and libraries call differently: `_allgather_base` and `AllGather` are all_gather."""
    return _KINDS.get(name.lower().replace("_", ""), name)


@once
def collective_calls(trace: Trace) -> pl.DataFrame:
    """Columns as in SCHEMA, by rank and time. Times in ns on the clock of each rank.

    On GPUs: communication kernels, joined with what the trace says of them by external id or correlation; where it
    says nothing, with the RCCL or NCCL call around their launch, else told by their names. Kernels launched before the
    recording have no step and stay unnumbered. Without any on a GPU: what gloo, MPI or UCC did on the host.
    """
    found = gpu_collectives(trace)
    if found.is_empty():
        found = _on_hosts(trace)
    if found.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    # One operation may need several kernels: those of one call are one.
    call = ["rank", "group", "call", "collective"]
    alone = found.filter(pl.col("call").is_null())
    joined = (
        found.filter(pl.col("call").is_not_null())
        .group_by(call, maintain_order=True)
        .agg(
            pl.exclude("ts", "end", "hidden_ns").first(),
            pl.col("ts").min(),
            pl.col("end").max(),
            pl.col("hidden_ns").sum(),
        )
        .select(alone.columns)
    )
    kinds = pl.col("collective").map_elements(plain, return_dtype=pl.String)
    calls = pl.concat([joined, alone]).with_columns(pl.col("group", "group_ranks").fill_null(""), collective=kinds)
    calls = calls.with_columns(size_bytes=size_bytes(), dur_ns=pl.col("end") - pl.col("ts"))
    calls = calls.sort("rank", "ts", maintain_order=True)
    numbered = pl.when(pl.col("known")).then(
        pl.int_range(pl.len()).over("rank", "step", "group", "group_ranks", "collective", "known")
    )
    return calls.with_columns(turn=numbered).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def size_bytes() -> pl.Expr:
    """The size as nccl-tests counts it, of rows with a plain collective, dtype and the elements of both sides."""
    item = pl.col("dtype").str.to_lowercase().replace_strict(_BYTES, default=None, return_dtype=pl.Int64)
    larger = pl.max_horizontal("in_elements", "out_elements")
    elements = pl.when(pl.col("collective").is_in(["all_gather", "reduce_scatter", "gather", "scatter"])).then(larger)
    return elements.otherwise(pl.coalesce("in_elements", "out_elements")) * item


@once
def gpu_collectives(trace: Trace) -> pl.DataFrame:
    """One row a communication kernel, in file order: what the trace says of its operation. `call`: the same number for the
    kernels of one operation, null where that is not known; `known`: its launch is in the trace.
    """
    events = origins(trace)
    chosen = events.filter(pl.col("role") == "communication")
    if chosen.is_empty():
        return chosen
    said = trace.collectives.filter(~pl.col("collective").is_in(["wait", "init"]))
    known = [name for name in said.columns if name not in ("rank", "external_id", "correlation")]
    first = [pl.col(name).drop_nulls().first() for name in known]
    chosen = chosen.with_columns(key=pl.col("rank").fill_null(-1))
    said = said.with_columns(key=pl.col("rank").fill_null(-1))
    for column in ("external_id", "correlation"):
        rows = said.filter(pl.col(column).is_not_null()).group_by("key", column).agg(first)
        chosen = chosen.join(rows, on=["key", column], how="left", suffix="_too", maintain_order="left")
        if column == "correlation":
            chosen = chosen.with_columns(pl.coalesce(name, f"{name}_too").alias(name) for name in known)
    names = _by_name(chosen)
    around = pl.Series("around", _library_calls(trace).gather(chosen["launch"]))
    own = _own_sizes(trace, chosen)
    chosen = chosen.with_columns(around, *names, *own).with_columns(
        pl.coalesce(name, f"{name}_own").alias(name) for name in ("dtype", "in_elements", "out_elements")
    )
    asked = pl.coalesce("collective", "around")
    chosen = chosen.with_columns(
        collective=pl.coalesce(asked, "named", pl.lit("unnamed")),
        group_size=pl.coalesce("group_size", "named_ranks", _only_sizes(trace)),
        call=pl.when(pl.col("collective").is_not_null() | pl.col("communicator").is_not_null()).then("external_id"),
        known=pl.col("linked"),
        step=step_at(trace, chosen.select("rank", pid="process", at="launched")),
        hidden_ns=_hidden(chosen, events.filter(pl.col("role") == "computation")),
    )
    return chosen.select(
        "rank", "device", "stream", "step", "group", "group_ranks", "group_size", "collective", "seq", "dtype", "in_elements",
        "out_elements", "ts", "end", "hidden_ns", "name", "call", "known", "algorithm",
    )  # fmt: skip


def _only_sizes(trace: Trace) -> pl.Expr:
    """`_only_size` of each row's rank."""
    files = trace.meta.get("files")
    if not isinstance(files, list):
        return pl.lit(_only_size(trace.meta), pl.Int64)
    sizes = {file["rank"]: _only_size(file) for file in files}
    return pl.col("rank").replace_strict(sizes, default=None, return_dtype=pl.Int64)


def _only_size(facts: dict[str, Any]) -> int | None:
    """How many ranks the process groups have that the recorded rank is in, where all of more than one rank have as many. facts: of its file."""
    said = facts.get("distributedInfo")
    groups = said.get("pg_config") if isinstance(said, dict) else None
    if not isinstance(groups, list):
        return None
    asked = [group.get("pg_size") for group in groups if isinstance(group, dict)]
    sizes = {size for size in asked if type(size) is int and 1 < size < 2**31}
    return sizes.pop() if len(sizes) == 1 else None


def _by_name(events: pl.DataFrame) -> list[pl.Series]:
    """What the operator that communicates, else the kernel's name, says: `named`, `named_ranks`, `algorithm`; else null."""
    found = []
    for name, operator in events.select("name", "communicator").iter_rows():
        kernel, op = communicating_kernel(name), communicating_op(operator) if operator else None
        asked = (op.collective if op else "") or (kernel.collective if kernel else "")
        found.append((asked or None, kernel.ranks if kernel else None, (kernel.algorithm if kernel else "") or None))
    schema = {"named": pl.String(), "named_ranks": pl.Int64(), "algorithm": pl.String()}
    return pl.DataFrame(found, schema=schema, orient="row").get_columns()


def _own_sizes(trace: Trace, events: pl.DataFrame) -> list[pl.Series]:
    """By the shapes of the operator that communicates, where Kineto says nothing of it: `dtype_own`, `in_elements_own` of its
    first tensor, `out_elements_own` of its second of the same type."""
    calls = launching_calls(trace).select("dims", "dtypes")
    at = pl.select(pl.when(events["communicator"].is_not_null()).then(events["op"])).to_series()
    rows = calls.select(pl.all().gather(at))
    known = {row: _sizes(*row) for row in rows.unique().iter_rows()}
    schema = {"dtype_own": pl.String(), "in_elements_own": pl.Int64(), "out_elements_own": pl.Int64()}
    return pl.DataFrame([known[row] for row in rows.iter_rows()], schema=schema, orient="row").get_columns()


def _sizes(dims: str | None, dtypes: str | None) -> tuple[str | None, int | None, int | None]:
    try:
        call = read_call("", dims, dtypes, None, None)
        kinds = [kind for kind in msgspec.json.decode(dtypes or "[]") if kind in PRECISIONS]
    except (Unknown, msgspec.DecodeError):
        return None, None, None
    if not call.tensors or len(kinds) != len(call.tensors):
        return None, None, None
    same = [tensor.size for tensor, kind in zip(call.tensors, kinds, strict=True) if kind == kinds[0]]
    return kinds[0].removeprefix("c10::"), same[0], same[1] if len(same) > 1 else None


def _library_calls(trace: Trace) -> pl.Series:
    """For each of `host_calls`, the collective that the NCCL or RCCL call around it asked for, else null."""
    calls = host_calls(trace)
    own = calls["name"].str.extract(_IN_CALL)
    if own.null_count() == own.len():
        return own
    caller = calls["caller"]
    above = own
    for _ in range(4):  # ncclAllReduce > hipExtLaunchKernel: a few levels at most
        above = pl.select(
            pl.coalesce(above, above.gather(pl.select(pl.when(caller >= 0).then(caller)).to_series()))
        ).to_series()
    return above


def _on_hosts(trace: Trace) -> pl.DataFrame:
    """gloo and its like: annotations on threads of their own, which overlap with the operators of other threads."""
    annotations = trace.events.filter(pl.col("kind") == "annotation").with_columns(
        collective=pl.col("name").str.extract(_ON_HOST), end=pl.col("ts") + pl.col("dur")
    )
    chosen = annotations.filter(pl.col("collective").is_not_null())
    if chosen.is_empty():
        return chosen
    threads = chosen.select("rank", "pid", "tid").unique()
    computing = trace.events.filter(pl.col("kind") == "cpu_op").with_columns(end=pl.col("ts") + pl.col("dur"))
    computing = computing.join(threads, on=["rank", "pid", "tid"], how="anti", nulls_equal=True)
    nothing = pl.lit(None)
    return chosen.select(
        "rank", "device", "stream", step=step_at(trace, chosen.select("rank", "pid", at="ts")), group=nothing.cast(pl.String), group_ranks=nothing.cast(pl.String),
        group_size=nothing.cast(pl.Int64), collective="collective", seq=nothing.cast(pl.Int64),
        dtype=nothing.cast(pl.String), in_elements=nothing.cast(pl.Int64), out_elements=nothing.cast(pl.Int64),
        ts="ts", end="end", hidden_ns=_hidden(chosen, computing), name="name", call=nothing.cast(pl.Int64),
        known=pl.lit(True), algorithm=nothing.cast(pl.String),
    )  # fmt: skip


def _hidden(calls: pl.DataFrame, computing: pl.DataFrame) -> pl.Series:
    """Nanoseconds of each call that the computation of the same rank and device covers."""
    hidden = np.zeros(calls.height, dtype=np.int64)
    rows = calls.with_row_index("row")
    for (rank, device), part in rows.group_by("rank", "device"):
        same = computing.filter(pl.col("rank").eq_missing(pl.lit(rank)), pl.col("device").eq_missing(pl.lit(device)))
        low, high = union(same["ts"].to_numpy(), same["end"].to_numpy())
        index = part["row"].to_numpy()
        hidden[index] = covered_before(low, high, part["end"].to_numpy()) - covered_before(
            low, high, part["ts"].to_numpy()
        )
    return pl.Series(hidden)


def covered_before(low: Ints, high: Ints, at: Ints) -> Ints:
    """Nanoseconds that the merged intervals [low, high) cover before each time."""
    if low.size == 0:
        return np.zeros(at.size, dtype=np.int64)
    whole = np.r_[0, np.cumsum(high - low)]
    place = np.searchsorted(low, at, side="right")  # intervals that have begun
    last = np.maximum(place - 1, 0)
    over = np.where(place > 0, np.maximum(high[last] - at, 0), 0)
    answer: Ints = whole[place] - over
    return answer
