"""rocprofv3: `rocprofv3 [options] -- program`, one run for the trace and one for each pass of counters.

Kernels run one at a time while counters are collected, so times come from a run that collects none.
Options and their versions: the help of rocprofiler-sdk 0.4 (ROCm 6.2) to 1.0 (7.0).
"""

from __future__ import annotations

import math
from pathlib import Path

from rung.profilers.plan import NotPlanned, Plan, Request, Run

# What to trace → its option, and the ROCm that brought it.
OPTIONS = {
    "kernels": ("--kernel-trace", (6, 2)),
    "hip": ("--hip-trace", (6, 2)),
    "hsa": ("--hsa-trace", (6, 2)),
    "markers": ("--marker-trace", (6, 2)),
    "copies": ("--memory-copy-trace", (6, 2)),
    "scratch": ("--scratch-memory-trace", (6, 2)),
    "allocations": ("--memory-allocation-trace", (6, 3)),
    "rccl": ("--rccl-trace", (6, 3)),
}
FORMATS = {"csv": (6, 2), "json": (6, 2), "pftrace": (6, 2), "otf2": (6, 3), "rocpd": (7, 0)}
PMC = (6, 3)  # before it, counters stand in a file
PC_SAMPLING = (6, 4)
FILTER = (6, 3)  # of counters by kernel
HOST_TRAP = ("gfx90a", "gfx94", "gfx95")
STOCHASTIC = ("gfx94", "gfx95")
CLOCK = 2.1e9  # Hz: what turns a rate into cycles; MI300X at its peak


def plan(request: Request) -> Plan:
    """Raises NotPlanned for what this version or GPU cannot do."""
    version = request.tool.version
    notes: list[str] = []
    traced = []
    for source in request.sources:
        option, since = OPTIONS.get(source, ("", (0, 0)))
        if not option:
            raise NotPlanned(f"rocprofv3 does not collect {source}: it has {', '.join(OPTIONS)}.")
        if version < since:
            notes.append(f"{source} left out: {option} came with ROCm {'.'.join(map(str, since))}.")
        else:
            traced.append(option)
    if request.sampling and request.passes and not traced:
        traced.append("--kernel-trace")  # no counters are collected in the run that is sampled: it gives the times
    runs, files = [], dict[Path, str]()
    # Numbered only where there are several: readers tell the passes of one program by such names.
    several = bool(request.passes) and bool(traced)
    if traced or not request.passes:
        output = request.folder / "pass_1" if several else request.folder
        options = [*traced, *_sampling(request, notes), *request.extra]
        runs.append(_run("trace, without counters" if several else "trace", request, output, options, notes))
    for number, counters in enumerate(request.passes, start=2 if several else 1):
        what = f"counters {number - several} of {len(request.passes)}"
        output = request.folder / f"pass_{number}" if several or len(request.passes) > 1 else request.folder
        named = ["--pmc", *counters]
        if version < PMC:
            files[output / "counters.txt"] = f"pmc: {' '.join(counters)}\n"
            named = ["-i", str(output / "counters.txt")]
        options = [*request.extra, *named, "--kernel-trace", *_only(request, notes)]
        runs.append(_run(what, request, output, options, notes, counters=True))
    return Plan(
        profiler="rocprofv3",
        tool=request.tool,
        folder=request.folder,
        runs=tuple(runs),
        collects=_collects(request),
        overhead="high" if request.passes else "medium" if {"hip", "hsa"} & set(request.sources) else "low",
        read_by="rung analyze"
        + (
            "; ui.perfetto.dev" if "pftrace" in request.formats else ""
        )
        + ("; the samples by hand (CSV)" if request.sampling else ""),
        files=files,
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _run(
    what: str, request: Request, output: Path, options: list[str], notes: list[str], counters: bool = False
) -> Run:
    wanted = [] if counters else list(request.formats)
    formats = [_read_format(request), *(name for name in wanted if name != _read_format(request))]
    for name in list(formats):
        if name not in FORMATS:
            raise NotPlanned(f"rocprofv3 does not write {name}: it writes {', '.join(FORMATS)}.")
        if request.tool.version < FORMATS[name]:
            notes.append(f"{name} left out: it came with ROCm {'.'.join(map(str, FORMATS[name]))}.")
            formats.remove(name)
        elif request.sampling and name not in ("csv", "json"):
            notes.append(f"{name} left out: samples are only written as CSV and JSON.")
            formats.remove(name)
    # Without -o every process writes <folder>/<host>/<pid>_…: no two processes or ranks meet.
    argv = [request.tool.command, *options, "--output-format", *formats, "-d", str(output), "--", *request.command]
    return Run(what, tuple(argv), output, dict(request.env))


def _only(request: Request, notes: list[str]) -> list[str]:
    if request.kernels and request.tool.version < FILTER:
        notes.append("--kernels left out: rocprofv3 chooses kernels from ROCm 6.3 on.")
        return []
    return ["--kernel-include-regex", request.kernels] if request.kernels else []


def _read_format(request: Request) -> str:
    """What our readers are given: databases keep more (bytes of copies, HIP streams); samples are not in them."""
    return "rocpd" if request.tool.version >= (7, 0) and not request.sampling else "csv"


def _sampling(request: Request, notes: list[str]) -> list[str]:
    """`host_trap` goes with time in µs, `stochastic` with cycles, a power of two from 256 to 2^31."""
    method = request.sampling
    if not method:
        return []
    if request.tool.version < PC_SAMPLING:
        raise NotPlanned("sampling the program counter needs ROCm 6.4 or later.")
    family = HOST_TRAP if method == "host_trap" else STOCHASTIC
    if request.arch and not request.arch.startswith(family):
        raise NotPlanned(
            f"{request.arch} cannot sample its program counter by {method}: that needs {', '.join(family)}."
        )
    if method == "host_trap":
        unit, interval = "time", round(1e6 / request.rate)
    else:
        unit, interval = "cycles", min(max(1 << round(math.log2(CLOCK / request.rate)), 256), 2**31)
        notes.append(
            f"every {interval:,} cycles, the power of two nearest to {request.rate} samples a second at 2.1 GHz."
        )
    return ["--pc-sampling-beta-enabled", "--pc-sampling-unit", unit, "--pc-sampling-method", method,
            "--pc-sampling-interval", str(max(interval, 1))]  # fmt: skip


def _collects(request: Request) -> str:
    said = list(request.sources)
    if request.passes:
        count = sum(map(len, request.passes))
        said.append(f"{count} counters in {len(request.passes)} pass" + ("es" if len(request.passes) > 1 else ""))
    if request.sampling:
        said.append(f"the program counter, {request.rate} times a second")
    return ", ".join(said)
