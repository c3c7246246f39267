"""Where the host's time goes, over the profiled steps: for traces without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from rung.analysis.attention import Dims, touches_scores
from rung.analysis.classifier import classify_op
from rung.analysis.gpu_time import Totals
from rung.analysis.intervals import Ints, covered, parents, self_times
from rung.analysis.steps import plain_steps
from rung.trace.table import Trace

_COMPILED_GRAPH = "CompiledFxGraph"
_COMPILED_REGION = "Torch-Compiled Region"
# Operators that compute nothing themselves: their own time is Python's, Dynamo's and autograd's.
_HOST_WORK = re.compile(
    r"^(autograd::engine::|torch::autograd::|\w+Backward\d+$|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction)"
)


@dataclass(frozen=True)
class HostCalls:
    """The operators of the profiled steps, or of the whole recording where no step is marked.

    calls: one row each: `name`, `dims`, `category` (the kind of work), `own_ns` (Float64), its time without the operators that it calls.
        Threads overlap, so these times are scaled: with the time of operators that compute nothing, they cover the busy time once.
    window: ns that the steps span. gemms: how many matrix products. compiled_ns: of the own times, those inside compiled graphs.
    """

    calls: pl.DataFrame
    window: int
    gemms: int
    compiled_ns: float

    @property
    def notes(self) -> list[str]:
        if not self.compiled_ns:
            return []
        return [
            f"{100 * self.compiled_ns / max(1, self.window):.0f}% of the window is inside compiled graphs, whose "
            "generated kernels are not recorded one by one; this time counts as pointwise."
        ]


def host_time(trace: Trace, scores: set[Dims]) -> Totals:
    """Of the operators' own times. scores: shapes of attention scores (`classified.scores_of`), by which attention that is
    written out is told."""
    found = host_calls(trace, scores)
    sums = found.calls.group_by("name", "category", maintain_order=True).agg(pl.len(), pl.col("own_ns").sum())
    rows = list(sums.iter_rows())
    computing = round(found.calls["own_ns"].sum())
    return Totals(
        window=found.window,
        busy=computing,
        launch_gap=max(0, found.window - computing),
        idle=0,
        times={(name, category): ns for name, category, _, ns in rows},
        counts=Counter({(name, category): count for name, category, count, _ in rows}),
        kernels=0,
        gemms=found.gemms,
        notes=["The trace has no GPU events; the parts are CPU time.", *found.notes],
    )


def host_calls(trace: Trace, scores: set[Dims]) -> HostCalls:
    """Which operators the host ran, of what kind, and how long each took by itself. scores: as of `host_time`."""
    calls, window = _profiled_calls(trace.events)
    start, end, thread = _spans(calls)
    order, caller = parents(start, end, thread)
    own = np.array(self_times(start, end, caller), dtype=np.int64)
    names, kinds, dims = calls["name"].to_list(), calls["kind"].to_list(), calls["dims"].to_list()
    compiled = any(_COMPILED_GRAPH in name for name in names)

    verdicts = [""] * len(names)
    categories: list[str | None] = [None] * len(names)  # None: no operator, or one that computes nothing
    outside = np.ones(len(names), dtype=bool)  # no operator above: the top level
    operator = np.array(
        [kind == "cpu_op" or _is_compiled(name) for kind, name in zip(kinds, names, strict=True)], dtype=bool
    )
    host_work = 0.0
    gemm_calls: set[int] = set()
    for i in order:
        above = verdicts[caller[i]] if caller[i] >= 0 else ""
        if caller[i] >= 0:
            outside[i] = outside[caller[i]] and not operator[caller[i]]
        name = names[i]
        # Inherited by callees: only attention and optimizer, other operators are what their own name says.
        is_step = kinds[i] == "annotation" and not operator[i]
        verdicts[i] = above or ("optimizer" if is_step else _inherited(name, dims[i], scores))
        if not operator[i]:
            continue
        if classify_op(name) == "gemm":
            gemm_calls.add(i)
            gemm_calls.discard(caller[i])  # aten::linear calls aten::addmm: one GEMM
        if _HOST_WORK.search(name) or (compiled and _COMPILED_REGION in name):
            host_work += own[i]
        else:
            categories[i] = verdicts[i] or ("elementwise" if _is_compiled(name) else classify_op(name))

    top_level = operator & outside
    busy = covered(start[top_level], end[top_level])
    chosen = np.array([category is not None for category in categories], dtype=bool)
    # Threads overlap: as on the GPU, the parts keep their proportions and cover the busy time once.
    scaled = own * (busy / max(1.0, own[chosen].sum() + host_work))
    generated = np.array(
        [_is_compiled(name) and not verdict for name, verdict in zip(names, verdicts, strict=True)], dtype=bool
    )
    table = calls.select("name", "dims").with_columns(
        category=pl.Series(categories, dtype=pl.String), own_ns=pl.Series(scaled, dtype=pl.Float64)
    )
    return HostCalls(table.filter(chosen), window, len(gemm_calls), float(scaled[chosen & generated].sum()))


def _inherited(name: str, dims: str | None, scores: set[Dims]) -> str:
    if touches_scores(name, dims, scores):
        return "attention"
    category = classify_op(name)
    return category if category in ("attention", "optimizer") else ""


def _is_compiled(name: str) -> bool:
    return _COMPILED_GRAPH in name or _COMPILED_REGION in name


def _profiled_calls(events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The operators inside the profiled steps, and the ns that these steps (else all operators) span."""
    annotation = pl.col("kind") == "annotation"
    compiled = pl.col("name").str.contains(f"{_COMPILED_GRAPH}|{_COMPILED_REGION}")
    calls = events.filter((pl.col("kind") == "cpu_op") | (annotation & compiled) | plain_steps(events))
    profiled = events.filter(annotation, pl.col("name").str.starts_with("ProfilerStep#"))
    frame = profiled if profiled.height else events.filter(annotation | (pl.col("kind") == "cpu_op"))
    if frame.is_empty():
        return calls, 0
    low = int(frame["ts"].to_numpy().min())
    high = int((frame["ts"] + frame["dur"]).to_numpy().max())
    inside = calls.filter(pl.col("ts") >= low, pl.col("ts") + pl.col("dur") <= high)
    return inside, high - low


def _spans(calls: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    thread = pl.struct("pid", "tid").rank("dense").cast(pl.Int64)
    columns = calls.select("ts", end=pl.col("ts") + pl.col("dur"), thread=thread)
    return columns["ts"].to_numpy(), columns["end"].to_numpy(), columns["thread"].to_numpy()
