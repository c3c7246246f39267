"""Where does a step's time go?"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rung.analysis.attention import Dims
from rung.analysis.calls import runtime_calls
from rung.analysis.classified import classified, scores_of
from rung.analysis.gpu_time import gpu_time
from rung.analysis.host_time import host_time
from rung.analysis.runtime_roles import LAUNCHING
from rung.errors import UsageError
from rung.quantities import duration
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
_TOP = 15
DISTURBED = 1.25  # times the recorded step: another process took the cores
WORTH_A_NOTE = 1.05  # times the timed step


@dataclass(frozen=True)
class Breakdown:
    """Where the time of one step goes; all times are nanoseconds per step.

    clock: "gpu" when the parts are GPU time, "cpu" when the trace has no GPU events and they are host time.
    step_ns: the duration that the parts add up to.
    parts: PARTS to nanoseconds. launch_gap is the GPU waiting for the host to launch (on the CPU clock: time
        in Python and the dispatcher, outside operators); idle is every other gap.
    kernels, launches: GPU kernels, and runtime calls that launch GPU work (on this GPU), per step.
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


def breakdown(trace: Trace, *, steps: int, step_ns: float | None = None) -> Breakdown:
    """Splits the time of one of the `steps` recorded steps into PARTS.

    step_ns: nanoseconds of a step measured without the profiler, which slows the host down: gaps are then
    what this leaves beside the busy time, shared between launch_gap and idle as observed. Without it a
    step is the trace's window / steps: first to last GPU event, or on the CPU clock the profiled steps.
    On that clock, where step_ns is longer than the recorded step, all parts are longer by the same factor.
    """
    if steps < 1:
        raise UsageError(f"The number of recorded steps must be at least 1, not {steps}.")
    softmax, scores = scores_of(trace)
    gpu = classified(trace)
    totals = host_time(trace, scores) if gpu.is_empty() else gpu_time(trace, gpu)
    notes = totals.notes
    negative = trace.unread.get("negative duration", 0)
    if negative:
        notes.append(f"{negative} events with a negative duration were left out.")

    parts = dict.fromkeys(PARTS, 0.0)
    for (_, category), ns in totals.times.items():
        parts[part_of(category)] += ns / steps
    busy, recorded, slower = totals.busy / steps, totals.window / steps, 1.0
    if step_ns is None or (gpu.is_empty() and step_ns > recorded > 0):
        # A profiler only slows the host down. What a step took longer without one was taken by other processes, from all parts alike.
        if step_ns and step_ns > DISTURBED * recorded:
            notes.append(
                f"A step was slower without the profiler: {duration(step_ns)} instead of {duration(recorded)}. The machine was busy then. "
                "The shares are those of the recorded step."
            )
        slower = step_ns / recorded if step_ns else 1.0
        step_ns = recorded * slower
        parts = {name: ns * slower for name, ns in parts.items()}
        parts["launch_gap"], parts["idle"] = (gap / steps * slower for gap in (totals.launch_gap, totals.idle))
    else:
        if step_ns < busy:
            if step_ns < busy / WORTH_A_NOTE:
                notes.append(
                    f"A step under the profiler was slower: its work took {duration(busy)}, and a whole step "
                    f"takes {duration(step_ns)} without the profiler. The shares are those of the slower step."
                )
            step_ns = busy
        gaps = totals.launch_gap + totals.idle
        waiting = totals.launch_gap / gaps if gaps else 1.0
        parts["launch_gap"] = (step_ns - busy) * waiting
        parts["idle"] = (step_ns - busy) * (1 - waiting)
    own = pl.col("device").eq_missing(pl.lit(totals.device, pl.Int32))
    others = set(gpu.filter(~own)["launch"].drop_nulls()) - set(gpu.filter(own)["launch"])
    launching = runtime_calls(trace).filter(pl.col("role").is_in(LAUNCHING))
    launches = launching.filter(~pl.col("position").is_in(list(others))).height
    bottleneck, share = largest_part(parts, step_ns)
    ranked = sorted(totals.times.items(), key=lambda item: -item[1])[:_TOP]
    return Breakdown(
        clock="cpu" if gpu.is_empty() else "gpu",
        steps=steps,
        step_ns=float(step_ns),
        parts=parts,
        kernels=totals.kernels / steps,
        launches=launches / steps,
        gemms=totals.gemms / steps,
        softmax_dims=tuple(softmax),
        bottleneck=bottleneck,
        share=share,
        notes=tuple(notes),
        top=tuple((key[0], key[1], ns / steps * slower, totals.counts[key] / steps) for key, ns in ranked),
    )


def part_of(category: str) -> str:
    """The part of PARTS that a category of work counts for."""
    return "pointwise" if category in _POINTWISE else category if category in PARTS else "other"


def largest_part(parts: dict[str, float], step_ns: float) -> tuple[str, float]:
    """The largest of the parts, the two of waiting taken as one, and its fraction of the step."""
    gap = "launch_gap" if parts["launch_gap"] >= parts["idle"] else "idle"
    sizes = {name: ns for name, ns in parts.items() if name not in ("launch_gap", "idle")}
    sizes[gap] = parts["launch_gap"] + parts["idle"]
    largest = max(sizes, key=lambda name: sizes[name])
    return largest, (sizes[largest] / step_ns if step_ns else 0.0)
