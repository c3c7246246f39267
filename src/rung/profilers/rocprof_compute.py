"""rocprof-compute (once Omniperf): `profile -n NAME -p DIR -- program`, then `analyze -p` its folder.

From ROCm 7.13 on, `profile` calls its -p deprecated, and later versions have --output-directory alone
(ROCm/rocm-systems#2595, #4685). `analyze` keeps -p.
"""

from __future__ import annotations

from rung.profilers.plan import WORKLOAD, Plan, Request, Run

NAME = "rung"
OUTPUT_DIRECTORY = (7, 13)  # the first ROCm whose documentation has the option


def plan(request: Request) -> Plan:
    """The tool chooses its own counters and passes; a `--set` or `--block` may be passed on with `extra`, and `--roof-only`
    for the roofs of the GPU: they are measured for minutes, so not unasked."""
    output = request.folder
    what, often, roof = "counters of every block of the chip", ": 15 times and more", ["--no-roof"]
    if "--roof-only" in request.extra:
        what, often, roof = "counters of the roofline, and the roofs of this GPU, measured", "", []
    option = "--output-directory" if request.tool.version >= OUTPUT_DIRECTORY else "-p"
    argv = (request.tool.command, "profile", "-n", NAME, option, str(output), *roof, *request.extra, "--")
    runs = (
        Run("profile", (*argv, *request.command), output, dict(request.env)),
        Run("analyze", (request.tool.command, "analyze", "-p", WORKLOAD), output, optional=True, recorded=False),
    )
    return Plan(
        profiler="rocprof-compute",
        tool=request.tool,
        folder=output,
        runs=runs,
        collects=f"{what}, in the passes that the tool needs",
        overhead="high",
        read_by="rung analyze; the tool's own tables are in the log of its analyze",
        notes=(f"the program is run once for each pass of the tool{often}.",),
    )
