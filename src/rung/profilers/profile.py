"""`rung profile`: from what is asked to a plan."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from rung.errors import UsageError
from rung.launch import START, filled
from rung.launch.slurm import IN_JOB
from rung.launch.slurm_task import of_task, task
from rung.profilers import counters, nsight, rocprof, rocprof_compute, rocprof_sys, rocprofv3, tools
from rung.profilers.plan import RECORDING, SAMPLES, NotPlanned, Plan, Request, Run
from rung.profilers.presets import Preset, preset
from rung.profilers.steps import REPORT, Recorded, Sensing, StepsRequest, TorchRecording
from rung.profilers.torch_profiler import Options
from rung.side import Launcher

PLANNERS: Mapping[str, Callable[[Request], Plan]] = {
    "rocprofv3": rocprofv3.plan,
    "rocprof": rocprof.plan,
    "rocprof-compute": rocprof_compute.plan,
    "rocprof-sys": rocprof_sys.plan,
    "rocprof-sys-sample": rocprof_sys.plan,
    "rocprof-sys-instrument": rocprof_sys.plan,
    "rocprof-sys-python": rocprof_sys.plan,
    "nsys": nsight.plan_systems,
    "ncu": nsight.plan_compute,
}
FILTERS = ("rocprofv3", "ncu")  # read counters of some kernels only
WARM = 3  # steps before those that are recorded
SAMPLED = 2.0  # seconds of unrecorded steps beside sensors, whose counters are refreshed every 1 to 100 ms
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


@dataclass(frozen=True)
class Target:
    """What is recorded: a workload of ours for `steps` steps, by several ranks where there is a launcher, or a command as it is.
    recorded: which of the ranks."""

    name: str
    command: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    rungs: tuple[str, ...] = ()
    device: str | None = None
    steps: int = 3
    launcher: Launcher | None = None
    recorded: Recorded | None = None

    def argv(
        self, torch: TorchRecording | None = None, seconds: float = 0.0, sensing: Sensing | None = None
    ) -> tuple[str, ...]:
        """torch: what torch.profiler is told; seconds: that unrecorded steps are to take; sensing: how ranks read their sensors."""
        if self.command:
            return self.command
        request = StepsRequest(
            target=self.name,
            options=dict(self.options),
            rungs=list(self.rungs),
            device=self.device,
            warm=WARM,
            steps=self.steps,
            torch=torch,
            seconds=seconds or None,
            recorded=(self.recorded or Recorded()) if self.launcher else None,
            sensing=sensing,
        )
        start = filled(self.launcher.words) if self.launcher else (sys.executable, START)
        return *start, "rung.profilers.steps", json.dumps(msgspec.to_builtins(request))


def chosen(target: Target, tool: str | None, asked: Preset | None) -> Preset:
    """What to record: the preset, else the usual of a profiler, else of the one that is there.

    tool: what --with says; it overrides the preset's. Without either, torch.profiler records a workload, and a command the
    first of rocprofv3, rocprof and nsys that is installed.
    """
    if asked and tool in (None, asked.tool):
        return asked
    if asked and tool:
        family = ("rocprofv3", "rocprof")
        if asked.tool not in family or tool not in family:
            raise UsageError(f"the preset {asked.name} is for {asked.tool}, not {tool}: leave --with or --preset out.")
        return replace(asked, tool=tool)
    if tool is None and target.command:
        tool = next((name for name in ("rocprofv3", "rocprof", "nsys") if tools.find(name)), None)
        if tool is None:
            raise UsageError("no profiler is installed that can record a command (rocprofv3, rocprof or nsys): "
                             "install one, or give a TARGET, which torch.profiler records.")  # fmt: skip
    if tool == "ncu":
        return replace(preset("nsight-counters"), name="")
    sources = ("kernels", "hip", "copies", "markers")
    return Preset("", tool=tool or "torch", sources=sources)


def planned(
    target: Target,
    wanted: Preset,
    folder: Path,
    *,
    names: Sequence[str] = (),
    arch: str = "",
    torch: Options | None = None,
    dry: bool = False,
    notes: Sequence[str] = (),
    sample: float = 0.0,
    kernels: str = "",
    rocm: tuple[int, ...] | None = None,
) -> Plan:
    """The plan for `wanted` into `folder`. names: counters beside or instead of the preset's; dry: plan for a profiler
    that is not installed, too; rocm: of a dry run, the release to plan for instead of the one here; sample: how often a second sensors
    are read beside it. Raises UsageError for what cannot be done, and says what can."""
    if target.command and wanted.tool == "torch":
        raise UsageError("torch.profiler records a TARGET; for a command choose another with --with.")
    if target.launcher and wanted.tool != "torch":
        raise UsageError(
            f"several ranks of a TARGET are recorded by torch.profiler; for {wanted.tool} give the command that starts them: "
            "`rung profile --with ... -- torchrun ...`."
        )
    if target.launcher and not target.launcher.meets:
        raise UsageError(
            "ranks that are recorded have to be started by torchrun, which tells them where they meet: --launcher 'srun torchrun ...'."
        )
    seconds = SAMPLED if sample else 0.0
    said = list(notes)
    if sample and dry:  # of a run, what they said is told
        what = "each rank reads the sensors of its GPU" if target.launcher else "the sensors of every GPU are read"
        until = "while it takes steps" if target.launcher else "until the first recorded run has ended"
        said.append(f"{what} {sample:g} times a second {until}, into {folder / SAMPLES}.")
    if kernels and not (wanted.tool in FILTERS and (names or wanted.counters)):
        raise UsageError(f"--kernels chooses the kernels whose counters are read, by {' or '.join(FILTERS)}: "
                         "give --counters, or a preset with counters (`rung profile --list`).")  # fmt: skip
    if rocm and not (dry and wanted.tool not in ("torch", "ncu", "nsys")):
        raise UsageError(
            "--rocm says for which ROCm a profiler of AMD's is planned: give it with --dry-run and --with."
        )
    if wanted.tool == "torch":
        return _torch(target, folder, torch or Options(), said, sample)
    tool, wanted = _found(wanted, dry, said, rocm)
    arch = arch or next(iter(tools.architectures()), "")
    if arch and wanted.tool not in ("ncu", "nsys") and not counters.is_listed(arch):
        said.append(f"{arch} is in none of Rung's tables: check the name; what it can count and sample is guessed.")
    passes: tuple[tuple[str, ...], ...] = ()
    if names or wanted.counters:
        passes = _passes(tool, names or counters.named(wanted.counters), arch, said, of_a_set=not names)
    request = Request(
        command=target.argv(),
        folder=folder / RECORDING,
        tool=tool,
        sources=wanted.sources if target.command else _marked(wanted),
        passes=passes,
        formats=wanted.formats,
        sampling=wanted.sampling,
        rate=wanted.rate,
        extra=() if names and wanted.tool == "ncu" else wanted.extra,  # how many passes they need is not known
        env=wanted.env,
        arch=arch,
        kernels=kernels,
        steps_only=not target.command,
    )
    try:
        plan = PLANNERS[wanted.tool](request)
    except NotPlanned as error:
        raise UsageError(str(error)) from None
    if wanted.sampling and not arch:
        said.append("no AMD GPU is seen here: whether it can sample its program counter is not known.")
    return _timed(replace(plan, notes=(*said, *plan.notes)), target, folder, seconds)


def _torch(target: Target, folder: Path, options: Options, notes: Sequence[str], sample: float) -> Plan:
    output = folder / RECORDING
    name = "trace.rank{rank}.json.gz" if target.launcher else "trace.json.gz"
    sensing = Sensing(str(folder / SAMPLES), sample) if target.launcher and sample else None
    argv = target.argv(TorchRecording(str(output / name), options), SAMPLED if sample else 0.0, sensing)
    slow = options.stacks or options.modules
    return Plan(
        profiler="torch",
        tool=tools.Tool("torch", None, ()),
        folder=output,
        runs=(Run("trace", argv, output, {REPORT: str(folder / "steps-1.json")}),),
        collects=options.says(),
        overhead="host" if slow else "medium",
        read_by="rung analyze; ui.perfetto.dev",
        notes=tuple(notes),
        ranks="" if target.launcher is None else "here" if target.launcher.here else "anywhere",
    )


def _found(wanted: Preset, dry: bool, notes: list[str], rocm: tuple[int, ...] | None) -> tuple[tools.Tool, Preset]:
    """The tool, or another that stands in for it; of a dry run, as it would be, of the release `rocm` where one is given."""
    tool = tools.find(wanted.tool)
    if tool is None and wanted.tool == "rocprofv3" and not wanted.sampling and (old := tools.find("rocprof")):
        notes.append("rocprofv3 is not installed; rocprof does what it can of this.")
        tool, wanted = old, replace(wanted, tool="rocprof")
    program = tools.EXECUTABLES[wanted.tool][0]
    if tool is None and not dry:
        raise UsageError(f"{program} is not on PATH, nor where its vendor installs it: install it, add its folder to PATH, "
                         f"or see with --dry-run what it would do{_of_the_other_vendor(wanted.tool)}.")  # fmt: skip
    if tool is None:
        tool = tools.planned(wanted.tool) if rocm is None else replace(tools.planned(wanted.tool), version=rocm)
        what = f" of ROCm {tool.version_text}" if tool.version else ""
        choose = "; --rocm VERSION plans for another" if rocm is None and tool.version else ""
        notes.append(f"{program} is not on PATH: planned for that{what}{choose}.")
    elif rocm:
        tool = replace(tool, version=rocm, assumed=False)
    elif tool.assumed:
        notes.append(f"{program} does not say its version: it is taken for that of ROCm {tool.version_text}.")
    return tool, wanted


def _of_the_other_vendor(tool: str) -> str:
    """The presets of the profilers that are here, where one of the other vendor's was asked for."""
    nvidia = {"ncu": "nsight-counters", "nsys": "nsight"}
    here = [] if tool in nvidia else [f"--preset {name}" for other, name in nvidia.items() if tools.find(other)]
    return f"; for the NVIDIA GPUs of this machine there is {' and '.join(here)}" if here else ""


def _marked(wanted: Preset) -> tuple[str, ...]:
    """The sources, with the marks by which the steps of a workload are found again."""
    return tuple(dict.fromkeys([*wanted.sources, "markers"]))


def _passes(
    tool: tools.Tool, names: Sequence[str], arch: str, notes: list[str], *, of_a_set: bool
) -> tuple[tuple[str, ...], ...]:
    if tool.name == "ncu":
        return (tuple(names),)
    listed = tools.available_counters(tool)
    arch = arch or next(iter(listed), "")
    if not arch:
        notes.append("no AMD GPU is seen here: counters are taken as they are named; say which with --arch.")
    # rocprof and rocprofv2 have files of their own, which nobody extended: what rocprofv3 had before 7.1.
    rocm = min(tool.version, (7, 0)) if tool.name == "rocprof" else tool.version
    found = counters.choose(names, arch, listed.get(arch), rocm)
    reasons: dict[str, list[str]] = {}
    for name, why in found.left_out.items():
        if of_a_set and counters.foreign(name, arch):
            continue  # a set serves both lines of GPUs; nobody misses the other's
        reasons.setdefault(why, []).append(name)
    notes += [f"{', '.join(some)}: {why}." for why, some in reasons.items()]
    if not found.counters:
        raise UsageError(f"none of the counters asked for can be read on {arch}: {', '.join(names)}.")
    # The first GPU here may be another: what that one can read says nothing of this one.
    if arch != next(iter(listed), ""):
        return counters.passes(found.counters, arch)
    return counters.passes(found.counters, arch, lambda group: tools.fits_one_pass(tool, group))


def _timed(plan: Plan, target: Target, folder: Path, seconds: float) -> Plan:
    """Of a workload: the same steps without the profiler first, and a report of their times from both."""
    if target.command:
        return plan
    bare = Run(
        "without the profiler",
        target.argv(None, seconds),
        plan.folder,
        {REPORT: str(folder / "steps-0.json")},
        recorded=False,
    )
    first, *others = plan.runs
    first = replace(first, env={**first.env, REPORT: str(folder / "steps-1.json")})
    return replace(plan, runs=(bare, first, *others), steps_only=plan.profiler != "ncu")


def new_folder(root: Path, name: str, out: Path | None, number: int | None = None) -> Path:
    """As `folder_for`. Raises UsageError where there is something in it."""
    folder = folder_for(root, name, out, number)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already: give an --out that is new or empty.")
    return folder


def folder_for(root: Path, name: str, out: Path | None, number: int | None = None) -> Path:
    """Where a recording goes: a folder that nobody else writes into. Of a task of an array, and of a rank of several, one of its own in it;
    number: of that rank, where the variables of launchers may not say it."""
    # A job's script has SLURM_PROCID, too, and so has the command that it runs in a container.
    a_rank = "SLURM_STEP_ID" in os.environ and IN_JOB not in os.environ
    variables = [name for name in RANK_VARIABLES if a_rank or name != "SLURM_PROCID"]
    rank = next((os.environ[v] for v in variables if os.environ.get(v, "").isdigit()), None)
    rank = rank if number is None else str(number)
    if out is None:
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:60]
        own = "" if task() is None else f"-task{task()}"
        out = root / "profiles" / f"{stamp}-{plain}-{os.getpid()}{own}"
    else:
        out = of_task(out)
    if rank is not None:
        out = out / f"rank{rank}"
    return out.resolve()
