"""rocprof-sys (once Omnitrace), ROCm's tracer of the whole system: `rocprof-sys-run -c CONFIG -- program`.

Settings go into a configuration file, which all of its commands understand alike. A name that the version does not know
ends the program (ROCPROFSYS_STRICT_CONFIG).
"""

from __future__ import annotations

from rung.profilers.plan import NotPlanned, Plan, Request, Run

_DOMAINS = {
    "hip": "hip_runtime_api",
    "kernels": "kernel_dispatch",
    "copies": "memory_copy",
    "markers": "marker_api",
    "scratch": "scratch_memory",
    "hsa": "hsa_api",
    "rccl": "rccl_api",
}
# As source/lib/core/config.cpp of the versions has the settings.
SDK = (6, 4)  # rocprof-sys 1.0: rocprofiler-sdk, whose domains can be chosen
ROCPD = AMD_SMI = (7, 0)  # rocprof-sys 1.1; before, ROCm SMI read the GPU's metrics


def plan(request: Request) -> Plan:
    """Which command: the tool's name. instrument rewrites nothing: it starts the program instrumented."""
    kind = request.tool.name.removeprefix("rocprof-sys").lstrip("-") or "run"
    database = request.tool.version >= ROCPD
    smi = "AMD_SMI" if request.tool.version >= AMD_SMI else "ROCM_SMI"
    settings = {
        "ROCPROFSYS_TRACE": "true",
        "ROCPROFSYS_PROFILE": "true",
        "ROCPROFSYS_OUTPUT_PATH": str(request.folder),
        "ROCPROFSYS_TIME_OUTPUT": "false",  # the folder is this process's own already
        "ROCPROFSYS_USE_PID": "true",
        f"ROCPROFSYS_USE_{smi}": "true" if "metrics" in request.sources else "false",
        "ROCPROFSYS_USE_RCCLP": "true" if "rccl" in request.sources else "false",
        "ROCPROFSYS_SAMPLING_CPUS": "none",
    }
    if request.tool.version >= SDK:
        settings["ROCPROFSYS_ROCM_DOMAINS"] = ",".join(_DOMAINS[s] for s in request.sources if s in _DOMAINS)
    if database:
        settings["ROCPROFSYS_USE_ROCPD"] = "true"
    if kind == "sample":
        settings["ROCPROFSYS_SAMPLING_FREQ"] = str(request.rate)
    if request.passes:
        if len(request.passes) > 1:
            raise NotPlanned("rocprof-sys reads one pass of counters: ask for fewer, or use rocprofv3.")
        settings["ROCPROFSYS_ROCM_EVENTS"] = ",".join(request.passes[0])
    config = request.folder / "rocprof-sys.cfg"
    argv, env = [request.tool.command], dict(request.env)
    if kind == "instrument":  # knows no -c
        env["ROCPROFSYS_CONFIG_FILE"] = str(config)
    else:
        argv += ["-c", str(config)]
    command = list(request.command)
    if kind == "python":
        if "python" not in command[0].rpartition("/")[2]:
            raise NotPlanned("rocprof-sys-python runs a Python script: give `-- python script.py`.")
        command = command[1:]
        if not command or command[0].startswith("-"):
            raise NotPlanned(
                "rocprof-sys-python runs a script, and no `-m` or `-c`: give `-- python script.py`, or use --with rocprof-sys."
            )
    notes = [] if database else ["before ROCm 7.0 there is no database: the Perfetto trace is read."]
    if request.tool.version < SDK:
        notes.append("before ROCm 6.4 its sources cannot be chosen: it records those that it has on by default.")
    if kind == "instrument" and "python" in command[0].rpartition("/")[2]:
        notes.append("to instrument the Python interpreter takes very long: rocprof-sys traces Python programs, too.")
    said = {"sample": f", call stacks {request.rate} times a second", "python": ", Python functions"}
    return Plan(
        profiler=f"rocprof-sys-{kind}",
        tool=request.tool,
        folder=request.folder,
        runs=(Run("trace", (*argv, *request.extra, "--", *command), request.folder, env),),
        collects=", ".join(s for s in request.sources if s in _DOMAINS or s == "metrics") + said.get(kind, ""),
        overhead="high" if kind in ("instrument", "python") or request.passes else "medium",
        read_by="rung analyze; ui.perfetto.dev",
        files={config: "".join(f"{name} = {value}\n" for name, value in settings.items())},
        notes=tuple(notes),
    )
