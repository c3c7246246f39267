"""What is asked of a profiler, and exactly what will be run for it: plain values, so that a plan can be shown and tested."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from rung.profilers.tools import Tool
from rung.records import profile as records

# What a recording may hold beside kernels; each profiler knows its own option for it.
Source = Literal["kernels", "hip", "hsa", "markers", "copies", "allocations", "scratch", "rccl", "samples", "metrics"]
SOURCES: tuple[str, ...] = get_args(Source)
Format = Literal["csv", "json", "pftrace", "otf2", "rocpd"]  # that rocprofv3 writes
Method = Literal["host_trap", "stochastic"]  # of sampling the program counter
# In the folder of a recording: what was run, where it wrote, what the sensors said meanwhile.
# The answer is written last: without it the recording did not end well.
PLAN, RECORDING, SAMPLES, ANSWER = "plan.json", "recording", "samples", "profile.json"
WORKLOAD = "{workload}"  # in an argv: the folder below a run's output that an earlier one made
IN_WORKLOAD = "sysinfo.csv"  # every version of rocprof-compute writes it there, whatever it calls its tables
OVERHEADS = {
    "low": "a little time a kernel",
    "medium": "time at every call of the runtime",
    "host": "the host is slowed several times over; kernels keep their own times",
    "replay": "every kernel runs alone, once a pass, and memory is restored in between: a step takes a thousand times as long and more",
    "high": "kernels run one at a time, the program once a pass: their times are not those of a run",
}


class NotPlanned(Exception):
    """The profiler cannot do what is asked; the text says why, and what can. The caller makes it a UsageError."""


def is_kept(folder: Path) -> bool:
    """Whether this is the folder of a recording that a plan made."""
    return (folder / PLAN).is_file() and (folder / RECORDING).is_dir()


@dataclass(frozen=True)
class Request:
    """command: the program and its arguments; folder: where everything is written, this process's own.

    sources: of SOURCES; passes: counters, one group a run of the program; formats: asked for beside the one that is read;
    sampling: 'host_trap' or 'stochastic', at `rate` samples a second; extra: options passed on as they are, to every run; env:
    variables for the program; kernels: regular expression of those whose counters are read, '' for all; arch: 'gfx942', or '' where it is not known.
    """

    command: tuple[str, ...]
    folder: Path
    tool: Tool
    sources: tuple[str, ...] = ("kernels", "hip", "copies")
    passes: tuple[tuple[str, ...], ...] = ()
    formats: tuple[str, ...] = ()
    sampling: str = ""
    rate: int = 1000
    extra: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    arch: str = ""
    kernels: str = ""
    steps_only: bool = False  # the program switches the recording on and off around its steps


@dataclass(frozen=True)
class Run:
    """One start of a program. env: variables beside those of this process; output: the folder that it writes into;
    says: a file into which the tool writes what it has to say, where that is not its output;
    optional: what fails here is said, and what other runs recorded is kept; recorded: whether it writes what is read."""

    what: str
    argv: tuple[str, ...]
    output: Path
    env: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    recorded: bool = True
    says: Path | None = None


@dataclass(frozen=True)
class Plan:
    """runs: in order, each alone; files: written before the first, path → text; notes: what was changed or left out;
    steps_only: what lies outside of the steps that the program marks is not part of the answer; ranks: the runs are ranks of a job, "here"
    on this host or "anywhere", and say what they wrote (rung.launch.gather)."""

    profiler: str
    tool: Tool
    folder: Path
    runs: tuple[Run, ...]
    collects: str
    overhead: str
    read_by: str
    files: Mapping[Path, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    steps_only: bool = False
    ranks: Literal["", "here", "anywhere"] = ""

    def record(self) -> records.Plan:
        """As it is written beside a recording, and printed."""
        return records.Plan(
            profiler=self.profiler,
            tool=str(self.tool.path or ""),
            version=self.tool.version_text,
            folder=str(self.folder),
            collects=self.collects,
            overhead=self.overhead,
            overhead_means=OVERHEADS[self.overhead],
            read_by=self.read_by,
            runs=[
                records.PlannedRun(
                    what=r.what, argv=list(r.argv), env=dict(r.env), output=str(r.output), recorded=r.recorded
                )
                for r in self.runs
            ],
            files={str(path): text for path, text in self.files.items()},
            notes=list(self.notes),
            steps_only=self.steps_only,
        )


def shown(plan: Plan) -> list[str]:
    """A shell script that does the same by hand: variables, quoted arguments, files; what is said beside it as comments."""
    lines = [f"# {plan.profiler} {plan.tool.version_text}".rstrip(), f"# collects: {plan.collects}"]
    lines += [f"# overhead: {plan.overhead} ({OVERHEADS[plan.overhead]})", f"# read by: {plan.read_by}"]
    lines += [f"# note: {note}" for note in plan.notes]
    for folder in sorted({run.output for run in plan.runs}):
        lines.append(f"mkdir -p {shlex.quote(str(folder))}")
    for path, text in plan.files.items():
        lines += [f"cat > {shlex.quote(str(path))} <<'END'", text.rstrip("\n"), "END"]
    for run in plan.runs:
        variables = [f"{name}={shlex.quote(value)}" for name, value in run.env.items()]
        words = [_found(run.output) if word == WORKLOAD else shlex.quote(word) for word in run.argv]
        lines += [f"# {run.what}", " ".join([*variables, *words])]
    return lines


def _found(output: Path) -> str:
    """What WORKLOAD stands for, in words of a shell."""
    return f'"$(dirname "$(find {shlex.quote(str(output))} -name {IN_WORKLOAD} | head -n 1)")"'
