"""Where does a step's time go?"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from rung.analysis.attention import Dims, touches_scores
from rung.analysis.classified import classified, scores_of
from rung.analysis.classifier import classify_op
from rung.analysis.dry_times import dry_times
from rung.analysis.intervals import Ints, covered, parents, self_times
from rung.analysis.runtime_roles import LAUNCHING, with_role
from rung.errors import UsageError
from rung.trace.table import Trace

PARTS = (
    "gemm",
    "attention",
    "pointwise",
    "optimizer",
    "convolution",
    "communication",
    "copy",
    "other",
    "launch_gap",
    "idle",
)
_POINTWISE = frozenset(("elementwise", "normalization", "reduction", "softmax", "embedding", "triton", "moe"))
_OPTIMIZER_STEP = r"^Optimizer\.step#"
_COMPILED_GRAPH = "CompiledFxGraph"
_COMPILED_REGION = "Torch-Compiled Region"
# Operators that compute nothing themselves: their own time is Python's, Dynamo's and autograd's.
_HOST_WORK = re.compile(
    r"^(autograd::engine::|torch::autograd::|\w+Backward\d+$|TorchDynamo|Pregraph|AOTDispatcher|CompiledFunction)"
)
_TOP = 15


@dataclass(frozen=True)
class Breakdown:
    """Where the time of one step goes; all times are nanoseconds per step.

    clock: "gpu" when the parts are GPU time, "cpu" when the trace has no GPU events and they are host time.
    step_ns: the duration that the parts add up to.
    parts: PARTS to nanoseconds. launch_gap is the GPU waiting for the host to launch (on the CPU clock: time
        in Python and the dispatcher, outside operators); idle is every other gap.
    kernels, launches: GPU kernels, and runtime calls that launch GPU work, per step.
    gemms: GEMM kernels (on the CPU clock: operators) per step, those inside hand-written attention included.
    softmax_dims: shapes of softmax inputs, where shapes were recorded.
    bottleneck, share: the largest part, launch_gap and idle taken as one, and its fraction of step_ns.
    top: (name, category, ns per step, count per step) of the kernels or operators that took most time.
    """

    clock: str
    steps: int
    step_ns: float
    parts: dict[str, float]
    kernels: float
    launches: float
    gemms: float
    softmax_dims: tuple[Dims, ...]
    bottleneck: str
    share: float
    notes: tuple[str, ...]
    top: tuple[tuple[str, str, float, float], ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain lists, dicts, numbers and strings."""
        return {
            **asdict(self),
            "softmax_dims": [list(shape) for shape in self.softmax_dims],
            "notes": list(self.notes),
            "top": [list(row) for row in self.top],
        }


@dataclass
class _Account:
    """What either clock found, summed over the whole trace, in nanoseconds."""

    window: int
    busy: int
    launch_gap: int
    idle: int
    times: dict[tuple[str, str], float]  # (name, category) -> time; adds up to busy
    counts: Counter[tuple[str, str]]
    kernels: int
    gemms: int
    notes: list[str]


def breakdown(trace: Trace, *, steps: int, step_ns: float | None = None) -> Breakdown:
    """Splits the time of one of the `steps` recorded steps into PARTS.

    step_ns: nanoseconds of a step measured without the profiler, which slows the host down: gaps are then
    what this leaves beside the busy time, shared between launch_gap and idle as observed. Without it a
    step is the trace's window / steps: first to last GPU event, or on the CPU clock the profiled steps.
    """
    if steps < 1:
        raise UsageError(f"A breakdown needs steps of at least 1, not {steps}: give the number of recorded steps.")
    softmax, scores = scores_of(trace)
    gpu = classified(trace)
    account = _cpu(trace, scores) if gpu.is_empty() else _gpu(trace, gpu)
    notes = account.notes
    negative = trace.unread.get("negative duration", 0)
    if negative:
        notes.append(f"{negative} events with a negative duration were left out.")

    parts = dict.fromkeys(PARTS, 0.0)
    for (_, category), ns in account.times.items():
        parts["pointwise" if category in _POINTWISE else category if category in parts else "other"] += ns / steps
    busy = account.busy / steps
    if step_ns is None:
        step_ns = account.window / steps
        parts["launch_gap"], parts["idle"] = account.launch_gap / steps, account.idle / steps
    else:
        if step_ns < busy:
            notes.append(
                f"The measured step ({step_ns / 1e6:.3f} ms) is shorter than the busy time of a profiled "
                f"step ({busy / 1e6:.3f} ms), which stands in for it: the profiler slows the work down."
            )
            step_ns = busy
        gaps = account.launch_gap + account.idle
        waiting = account.launch_gap / gaps if gaps else 1.0
        parts["launch_gap"] = (step_ns - busy) * waiting
        parts["idle"] = (step_ns - busy) * (1 - waiting)
    launches = (
        with_role(trace.events.filter(pl.col("kind") == "runtime")).filter(pl.col("role").is_in(LAUNCHING)).height
    )
    bottleneck, share = largest_part(parts, step_ns)
    ranked = sorted(account.times.items(), key=lambda item: -item[1])[:_TOP]
    return Breakdown(
        clock="cpu" if gpu.is_empty() else "gpu",
        steps=steps,
        step_ns=float(step_ns),
        parts=parts,
        kernels=account.kernels / steps,
        launches=launches / steps,
        gemms=account.gemms / steps,
        softmax_dims=tuple(softmax),
        bottleneck=bottleneck,
        share=share,
        notes=tuple(notes),
        top=tuple((key[0], key[1], ns / steps, account.counts[key] / steps) for key, ns in ranked),
    )


def largest_part(parts: dict[str, float], step_ns: float) -> tuple[str, float]:
    """The largest of the parts, the two of waiting taken as one, and its fraction of the step."""
    gap = "launch_gap" if parts["launch_gap"] >= parts["idle"] else "idle"
    sizes = {name: ns for name, ns in parts.items() if name not in ("launch_gap", "idle")}
    sizes[gap] = parts["launch_gap"] + parts["idle"]
    largest = max(sizes, key=lambda name: sizes[name])
    return largest, (sizes[largest] / step_ns if step_ns else 0.0)


# ---- GPU clock -----------------------------------------------------------------------------------------


def _gpu(trace: Trace, events: pl.DataFrame) -> _Account:
    notes = []
    per_device = events.group_by("device").agg(pl.col("dur").sum()).sort("dur", "device", descending=[True, False])
    if per_device.height > 1:
        device = per_device["device"][0]
        events = events.filter(pl.col("device") == device)
        notes.append(f"The trace has {per_device.height} devices; device {device}, the busiest, is shown.")
    start, end = events["ts"].to_numpy(), events["end"].to_numpy()
    busy, window = covered(start, end), int(end.max() - start.min())
    late = dry_times(trace).filter(pl.col("device").is_in(events["device"].unique().implode()), "late")
    launch_gap = min(int((late["end"] - late["ts"]).sum()), window - busy)
    sums = events.group_by("name", "category", maintain_order=True).agg(pl.len(), pl.col("dur").sum())
    # Streams overlap: each category keeps its proportion, together they cover the busy time once.
    scale = busy / max(1, int(sums["dur"].sum()))
    rows = list(sums.iter_rows())

    unlinked = events.filter(~pl.col("linked"))
    if unlinked.height == events.height:
        notes.append(
            "No launches were recorded: a wait for one counts as idle, and kernels are told by their names alone."
        )
    elif unlinked.height:
        share = int(unlinked["dur"].sum()) / max(1, int(events["dur"].sum()))
        notes.append(
            f"{share * 100:.0f} % of GPU time ({unlinked.height} x) was launched outside the recorded window: it counts, "
            "but cannot be joined with its operators."
        )
    replayed = events.filter("graph")
    if replayed.height:
        notes.append(
            f"{replayed.height} GPU events were replayed by {_launches(replayed['launch'].n_unique())}: their "
            "categories come from kernel names alone, and launches count a replay once."
        )
    return _Account(
        window=window,
        busy=busy,
        launch_gap=launch_gap,
        idle=window - busy - launch_gap,
        times={(name, category): ns * scale for name, category, _, ns in rows},
        counts=Counter({(name, category): count for name, category, count, _ in rows}),
        kernels=events.filter(pl.col("kind") == "kernel").height,
        gemms=events.filter(pl.col("named") == "gemm").height,
        notes=notes,
    )


def _launches(count: int) -> str:
    return f"{count} launches of a graph" if count > 1 else "one launch of a graph"


def _spans(calls: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    thread = pl.struct("pid", "tid").rank("dense").cast(pl.Int64)
    columns = calls.select("ts", end=pl.col("ts") + pl.col("dur"), thread=thread)
    return columns["ts"].to_numpy(), columns["end"].to_numpy(), columns["thread"].to_numpy()


# ---- CPU clock -----------------------------------------------------------------------------------------


def _cpu(trace: Trace, scores: set[Dims]) -> _Account:
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
    notes = ["The trace has no GPU events: the parts are host time."]
    if compiled_time:
        notes.append(
            f"{100 * compiled_time * scale / max(1, window):.0f} % of the window is inside compiled graphs, whose "
            "generated kernels are not recorded one by one; it is counted as pointwise."
        )
    return _Account(
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
    calls = events.filter(
        (pl.col("kind") == "cpu_op") | (annotation & (compiled | pl.col("name").str.contains(_OPTIMIZER_STEP)))
    )
    profiled = events.filter(annotation, pl.col("name").str.starts_with("ProfilerStep#"))
    frame = profiled if profiled.height else events.filter(annotation | (pl.col("kind") == "cpu_op"))
    if frame.is_empty():
        return calls, 0
    low = int(frame["ts"].to_numpy().min())
    high = int((frame["ts"] + frame["dur"]).to_numpy().max())
    inside = calls.filter(pl.col("ts") >= low, pl.col("ts") + pl.col("dur") <= high)
    return inside, high - low
