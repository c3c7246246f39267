"""The tools before rocprofv3: rocprof (`rocprof [options] program`, no `--`) and rocprofv2. Both are deprecated.

A pass is one line `pmc: A B` of an input file, and every pass a run of its own here, so that each has its folder.
"""

from __future__ import annotations

from pathlib import Path

from rung.profilers.plan import NotPlanned, Plan, Request, Run

# What to trace → the option of each; kernels are always recorded by v1.
OPTIONS = {
    "v1": {"kernels": "", "hip": "--hip-trace", "hsa": "--hsa-trace", "markers": "--roctx-trace", "copies": ""},
    "v2": {
        "kernels": "--kernel-trace",
        "hip": "--hip-trace",
        "hsa": "--hsa-trace",
        "markers": "--roctx-trace",
        "copies": "",
    },
}


def plan(request: Request) -> Plan:
    """Raises NotPlanned for what these tools cannot do."""
    if request.sampling:
        raise NotPlanned("rocprof does not sample the program counter: use rocprofv3.")
    tool, options = request.tool, OPTIONS[request.tool.legacy or "v1"]
    notes = [f"{source} left out: {tool.command.rpartition('/')[2]} cannot trace it; rocprofv3 can."
             for source in request.sources if source not in options]  # fmt: skip
    unread = [name for name in request.formats if name not in ("csv", "json")]
    if unread:
        notes.append(f"{', '.join(unread)} left out: rocprof writes CSV, JSON and a database.")
    if request.kernels:
        notes.append("--kernels left out: rocprof reads the counters of all kernels.")
    notes.append("rocprof is deprecated and left out of newer ROCm: use rocprofv3 where it is there.")
    traced = list(dict.fromkeys(options[source] for source in request.sources if options.get(source)))
    several = bool(request.passes)
    runs = [_run("trace", request, request.folder / "pass_1" if several else request.folder,
                 [*traced, *request.extra])]  # fmt: skip
    files: dict[Path, str] = {}
    for number, counters in enumerate(request.passes, start=2):
        output = request.folder / f"pass_{number}"
        files[output / "counters.txt"] = f"pmc: {' '.join(counters)}\n"
        options_of = [*request.extra, "-i", str(output / "counters.txt")]
        runs.append(_run(f"counters {number - 1} of {len(request.passes)}", request, output, options_of))
    return Plan(
        profiler="rocprofv2" if tool.legacy == "v2" else "rocprof",
        tool=tool,
        folder=request.folder,
        runs=tuple(runs),
        collects=", ".join([*request.sources, *([f"{sum(map(len, request.passes))} counters"] if several else [])]),
        overhead="high" if several else "medium",
        read_by="rung analyze",
        files=files,
        notes=tuple(notes),
    )


def _run(what: str, request: Request, output: Path, options: list[str]) -> Run:
    if request.tool.legacy == "v2":
        argv = [request.tool.command, *options, "--plugin", "file", "-d", str(output), "-o", "results"]
    else:  # v1 writes results.csv, results.json, results.db beside the file that -o names, and wants a time a kernel
        argv = [request.tool.command, *options, "--timestamp", "on", "-o", str(output / "results.csv")]
    return Run(what, (*argv, *request.command), output, dict(request.env))
