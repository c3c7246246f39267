"""rocprof-compute (once Omniperf): `profile -n NAME -p DIR -- program`, then `analyze -p` its folder."""

from __future__ import annotations

from rung.profilers.plan import Plan, Request, Run

NAME = "rung"
WORKLOAD = "{workload}"  # in an argv: the folder that an earlier run wrote, known only then


def plan(request: Request) -> Plan:
    """The tool chooses its own counters and passes; a `--set` or `--block` may be passed on with `extra`, and `--roof-only`
    for the roofs of the GPU: they are measured for minutes, so not unasked."""
    output = request.folder
    measured = "--roof-only" in request.extra
    roof = [] if measured else ["--no-roof"]
    argv = (request.tool.command, "profile", "-n", NAME, "-p", str(output), *roof, *request.extra, "--")
    runs = (
        Run("profile", (*argv, *request.command), output, dict(request.env)),
        Run("analyze", (request.tool.command, "analyze", "-p", WORKLOAD), output, optional=True, recorded=False),
    )
    return Plan(
        profiler="rocprof-compute",
        tool=request.tool,
        folder=output,
        runs=runs,
        collects=(
            "counters of the roofline, and the roofs of this GPU, measured"
            if measured
            else "counters of every block of the chip"
        )
        + ", in the passes that the tool needs",
        overhead="high",
        read_by="rung analyze; the tool's own tables are in analyze.log",
        notes=(
            "the program is run once for each pass of the tool: 15 times and more.",
            f"{WORKLOAD} is the folder with pmc_perf.csv that the first run leaves.",
        ),
    )
