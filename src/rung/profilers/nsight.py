"""NVIDIA's profilers: Nsight Systems (`nsys profile`), a trace, and Nsight Compute (`ncu`), counters a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rung.profilers.plan import NotPlanned, Plan, Request, Run

_TRACES = {"kernels": "cuda", "hip": "cuda", "copies": "cuda", "markers": "nvtx", "rccl": "nvtx"}


def plan_systems(request: Request) -> Plan:
    """`nsys profile … program`; the report is exported to SQLite, which is what is read."""
    if request.passes:
        raise NotPlanned("nsys reads no counters of kernels: use --with ncu.")
    traces = list(dict.fromkeys(_TRACES[s] for s in request.sources if s in _TRACES)) or ["cuda"]
    argv = [request.tool.command, "profile", "--trace", ",".join(traces), "--sample", "none", "--cpuctxsw", "none",
            "--export", "sqlite", "--force-overwrite", "true", "--output", str(request.folder / "report")]  # fmt: skip
    if request.steps_only:
        argv += ["--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"]
    return Plan(
        profiler="nsys",
        tool=request.tool,
        folder=request.folder,
        runs=(Run("trace", (*argv, *request.extra, *request.command), request.folder, dict(request.env)),),
        collects=", ".join(traces),
        overhead="medium",
        read_by="rung analyze; the Nsight Systems viewer",
    )


def plan_compute(request: Request) -> Plan:
    """`ncu … program`: the kernels' counters as CSV, one line a kernel."""
    counters = [name for group in request.passes for name in group]
    if not counters:
        raise NotPlanned("ncu needs counters to read: give --counters, or leave --preset out.")
    log = request.folder / "ncu.csv"
    argv = [request.tool.command, "--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all",
            "--clock-control", "none", "--metrics", ",".join(counters), "--log-file", str(log)]  # fmt: skip
    if request.kernels:
        argv += ["--kernel-name-base", "demangled", "--kernel-name", f"regex:{request.kernels}"]
    if request.steps_only:
        argv += ["--profile-from-start", "off"]
    return Plan(
        profiler="ncu",
        tool=request.tool,
        folder=request.folder,
        runs=(Run("counters", (*argv, *request.extra, *request.command), request.folder, dict(request.env), says=log),),
        collects=f"{len(counters)} counters of " + (f"kernels like {request.kernels}" if request.kernels else "every kernel"),
        overhead="replay",
        read_by="rung analyze",
        notes=(f"ncu runs kernels alone, once a pass, {_caches(request.extra)}: their times are not those of a run. "
               "The clocks are left as they are.",),
    )  # fmt: skip


def _caches(extra: Sequence[str]) -> str:
    kept = ("--cache-control", "none") in itertools.pairwise(extra)
    return "with the caches as the kernel before left them" if kept else "with its caches flushed"
