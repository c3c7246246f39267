"""Where the host's time goes, over the profiled steps: for traces without a GPU."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

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


def host_time(trace: Trace, scores: set[Dims]) -> Totals:
    """Of the operators' own times. scores: shapes of attention scores (`classified.scores_of`), by which attention that is
    written out is told."""
    calls, window = _profiled_calls(trace.events)
    start, end, thread = _spans(calls)
    order, caller = parents(start, end, thread)
    own = self_times(start, end, caller)
    names, kinds, dims = calls["name"].to_list(), calls["kind"].to_list(), calls["dims"].to_list()
    compiled = any(_COMPILED_GRAPH in name for name in names)

    verdicts = [""] * len(names)
    outside = np.ones(len(names), dtype=bool)  # no operator above: the top level
    operator = np.array(
        [kind == "cpu_op" or _is_compiled(name) for kind, name in zip(kinds, names, strict=True)], dtype=bool
    )
    times: dict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    host_work = 0.0
    compiled_time = 0.0
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
            continue
        if verdicts[i]:
            category = verdicts[i]
        elif _is_compiled(name):
            category = "elementwise"
            compiled_time += own[i]
        else:
            category = classify_op(name)
        times[name, category] += own[i]
        counts[name, category] += 1

    top_level = operator & outside
    busy = covered(start[top_level], end[top_level])
    # Threads overlap: as on the GPU, the parts keep their proportions and cover the busy time once.
    scale = busy / max(1.0, sum(times.values()) + host_work)
    times = {key: ns * scale for key, ns in times.items()}
    computing = round(sum(times.values()))
    notes = ["The trace has no GPU events; the parts are CPU time."]
    if compiled_time:
        notes.append(
            f"{100 * compiled_time * scale / max(1, window):.0f} % of the window is inside compiled graphs, whose "
            "generated kernels are not recorded one by one; this time counts as pointwise."
        )
    return Totals(
        window=window,
        busy=computing,
        launch_gap=max(0, window - computing),
        idle=0,
        times=times,
        counts=counts,
        kernels=0,
        gemms=len(gemm_calls),
        notes=notes,
    )


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
