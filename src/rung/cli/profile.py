"""`rung profile`: parse, call, render."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import (
    ROOT,
    add_command,
    at_least,
    check_early,
    listed_names,
    need_torch,
    no_rest,
    rung_names,
    say,
    seconds,
    stop_when_asked,
    target_options,
)
from rung.cli.kubernetes import add_options as add_kubernetes_options
from rung.cli.ranks import add_rank_options, check_ranks, launcher_of
from rung.cli.remember import remembered
from rung.cli.slurm import add_options as add_job_options
from rung.errors import UsageError, from_here
from rung.profilers.tools import PROFILERS

if TYPE_CHECKING:
    from rung.records.profile import Profile
    from rung.records.slurm_job import InJob
    from rung.trace import Trace

EXAMPLE = """\
example, on a CPU:
  $ rung profile model.py:make
  A step, the mean of 3: 7.28 ms
    matrix products       4.87 ms   67%  ████████████████████
    pointwise             1.15 ms   16%  █████
    Python and dispatch    691 µs    9%  ███
    copies                 470 µs    6%  ██
    2 matrix products per step.

more:
  rung profile model.py:make --stacks --memory --steps 1
  rung profile tiny-transformer --preset compute       rocprofv3: a trace and hardware counters
  rung profile --preset trace -- python train.py --epochs 1
  rung profile --with rocprofv3 --counters SQ_WAVES,TCC_HIT_sum -- ./app
  rung profile model.py:make --preset memory --kernels 'gemm|Cijk'
  rung profile --preset memory --arch gfx942 --dry-run -- python train.py
  rung profile --madengine-config profiling.json -- python train.py
  rung profile model.py:make --nproc-per-node 8 --every 4   ranks 0 and 4 of eight
  rung profile --list                                  the presets: what each collects and costs

The recording and its logs stay in .rung/profiles. `rung analyze` reads it again.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "profile", help_text, EXAMPLE, run, target="target")
    parser.add_argument("target", nargs="?", metavar="TARGET | -- COMMAND ...",
                        help="a workload, of which a few steps are recorded; or any program")  # fmt: skip
    parser.add_argument("--with", dest="tool", choices=PROFILERS, metavar="PROFILER",
                        help=f"{', '.join(PROFILERS)} (default: torch for a TARGET; for a program, the one that is installed)")  # fmt: skip
    parser.add_argument("--preset", metavar="NAME", help="what to collect (--list shows them)")
    parser.add_argument("--list", action="store_true", help="list the presets and the profilers that are installed")
    parser.add_argument("--dry-run", action="store_true", help="print the commands as a shell script, and run nothing")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder for the recording (default: a folder in .rung/profiles)"
    )
    parser.add_argument("--counters", type=listed_names, metavar="A,B,...", help="collect these hardware counters")
    parser.add_argument("--kernels", default="", metavar="REGEX", help="collect counters of these kernels only")
    parser.add_argument(
        "--madengine-config",
        type=Path,
        metavar="FILE",
        help="run the tools of this --additional-context file of madengine",
    )
    parser.add_argument(
        "--arch", type=gfx, metavar="GFX", help="plan counters for this GPU (default: the one in this machine)"
    )
    parser.add_argument(
        "--rocm", type=release, metavar="VERSION", help="with --dry-run: plan for this release of ROCm, as in 7.1"
    )
    parser.add_argument(
        "--deadline", type=seconds, default=1800.0, metavar="SECONDS", help="time limit for each run (default: 1800)"
    )
    parser.add_argument(
        "--power", action="store_true", help="also sample power, energy, clocks and temperature of every GPU"
    )
    parser.add_argument("--vram", action="store_true", help="also sample the GPU memory in use")
    parser.add_argument("--rate", type=seconds, default=None, metavar="HZ", help="samples per second (default: 10)")
    own = parser.add_argument_group("for a TARGET")
    own.add_argument("--steps", type=int, default=3, metavar="N", help="steps to record, after warm-up (default: 3)")
    own.add_argument("--rungs", type=rung_names, default=(), metavar="A,B,...", help="run with these rungs")
    own.add_argument("--device", help="cpu, cuda or cuda:N (default: the best one)")
    torch = parser.add_argument_group("for torch.profiler")
    torch.add_argument("--stacks", action="store_true", help="record the Python stack of every operator (slow)")
    torch.add_argument("--modules", action="store_true", help="record module names with the stacks (slow)")
    torch.add_argument("--memory", action="store_true", help="record every allocation")
    torch.add_argument("--flops", action="store_true", help="record FLOP of matrix products and convolutions")
    torch.add_argument("--no-shapes", action="store_true", help="do not record the shapes of operators' inputs")
    torch.add_argument("--wait", type=int, default=0, metavar="N", help="steps to skip before each round (default: 0)")
    torch.add_argument(
        "--warm", type=int, default=1, metavar="N", help="steps on which the profiler warms up (default: 1)"
    )
    torch.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds; each makes a trace (default: 1)")
    add_rank_options(parser)
    parser.add_argument("--ranks", type=rank_numbers, metavar="A,B,...", help="record these ranks; the others only run")
    parser.add_argument("--every", type=at_least(1), metavar="N", help="record every Nth rank, starting with 0")
    add_job_options(parser, dry_run=False)
    add_kubernetes_options(parser)


def rank_numbers(text: str) -> tuple[int, ...]:
    """`0,8,16`"""
    return tuple(map(at_least(0), text.split(",")))


def gfx(text: str) -> str:
    """The name of an AMD architecture, as in gfx942."""
    name = text.lower()
    if not re.fullmatch(r"gfx[0-9a-f]{2,5}", name):
        raise argparse.ArgumentTypeError(f"{text!r} is not an architecture; write it as in gfx942")
    return name


def release(text: str) -> tuple[int, ...]:
    """(7, 1) of 7.1 or 7.1.0."""
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.\d{1,9})*", text, re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version of ROCm; write it as in 7.1")
    return int(found[1]), int(found[2])


def run(parsed: argparse.Namespace) -> int:
    if parsed.list:
        no_rest([*parsed.rest, *([parsed.target] if parsed.target else [])])
        return listed(parsed.json)
    check(parsed)
    from rung.launch.requeued import in_job, mark
    from rung.profilers.profile import folder_for, new_folder, planned
    from rung.profilers.recording import carried_out
    from rung.records.profile import Planned
    from rung.records.record import plain, record_of
    from rung.runs import to_json

    stop_when_asked()  # what was started is ended, too
    target, wanted, notes, rate = asked(parsed)
    if parsed.target and wanted.tool == "torch":
        need_torch()
        check_early(parsed.target, parsed.device)
    here, name = in_job(shlex.join(["rung", *sys.argv[1:]])), f"{target.name}-{wanted.name or wanted.tool}"
    if parsed.out and (found := kept_before(folder_for(ROOT, name, parsed.out), here)):
        print(page(*found, parsed))
        return 0
    folder = new_folder(ROOT, name, parsed.out)
    plan = planned(target, wanted, folder, names=parsed.counters or (), arch=parsed.arch or "", torch=torch_options(parsed),
                   dry=parsed.dry_run, notes=notes, sample=rate, kernels=parsed.kernels, rocm=parsed.rocm)  # fmt: skip
    if parsed.dry_run:
        from rung.profilers.plan import shown

        print(to_json(plain(record_of(Planned, plan.record()))) if parsed.json else "\n".join(shown(plan)))
        return 0
    mark(folder, here)
    trace, record = carried_out(plan, parsed.deadline, say, rate)
    with remembered("profile", plain(record), target=parsed.target or shlex.join(parsed.program)):
        print(page(trace, record, parsed))
    return 0


def kept_before(folder: Path, here: InJob) -> tuple[Trace, Profile] | None:
    """What this command had recorded before SLURM started its job anew. What was cut off is put aside, unless the program wrote there, too;
    None is returned then."""
    from rung.launch.requeued import earlier
    from rung.profilers.collect import read_kept
    from rung.profilers.plan import ANSWER
    from rung.records.profile import Profile
    from rung.records.record import record_of
    from rung.runs.garbage import of_a_recording

    if earlier([folder], here) is None:
        return None
    if not (folder / ANSWER).is_file():
        if all(of_a_recording(path.name) for path in folder.iterdir()):
            aside = next(p for k in count(1) if not (p := folder.with_name(f"{folder.name}.cut-{k}")).exists())
            folder.rename(aside)
            say(
                f"SLURM started this job anew; what it had recorded was not complete: it is in {aside}, and is recorded again"
            )
        return None
    say(f"SLURM started this job anew; {folder} had been recorded")
    return read_kept(folder), record_of(Profile, json.loads((folder / ANSWER).read_text()))


def asked(parsed: argparse.Namespace) -> tuple[Any, Any, list[str], float]:
    """What is recorded, what of it, what is to be said, and how often a second sensors are read (0: not at all)."""
    from rung.hardware.places import which
    from rung.profilers import madengine
    from rung.profilers.presets import preset
    from rung.profilers.profile import Target, chosen
    from rung.profilers.steps import Recorded

    wanted, notes, rate = preset(parsed.preset) if parsed.preset else None, list[str](), 10.0
    command = parsed.program
    if parsed.madengine_config:
        config = madengine.read(parsed.madengine_config)
        wanted, notes, rate = config.preset, list(config.notes), 1 / config.rate
        command = config.launched(command)
    if parsed.target:
        options = target_options(parsed)
        recorded = Recorded(ranks=list(parsed.ranks or ()), every=parsed.every or 1)
        ranks = launcher_of(parsed)
        target = Target(parsed.target, (), options, parsed.rungs, parsed.device, parsed.steps, ranks, recorded)
    else:
        target = Target(Path(command[0]).name, command)
    tool = parsed.tool
    if parsed.counters and not tool and not wanted:
        amds = parsed.arch or which("rocprofv3") or not which("ncu")  # --arch names GPUs of AMD's alone
        tool = "rocprofv3" if amds else "ncu"
    wanted = chosen(target, tool, wanted)
    sampled = parsed.power or parsed.vram or parsed.rate or wanted.sample
    return target, wanted, notes, (parsed.rate or rate) if sampled else 0.0


def torch_options(parsed: argparse.Namespace) -> Any:
    """What torch.profiler is told."""
    from rung.profilers.torch_profiler import Options

    return Options(
        active=parsed.steps,
        wait=parsed.wait,
        warm=parsed.warm,
        repeat=parsed.repeat,
        shapes=not parsed.no_shapes,
        stacks=parsed.stacks or parsed.modules,
        memory=parsed.memory,
        modules=parsed.modules,
        flops=parsed.flops,
    )


def check(parsed: argparse.Namespace) -> None:
    """Raises UsageError for what cannot be meant."""
    if parsed.target and parsed.program:
        raise UsageError("give a TARGET or `-- COMMAND ...`, not both.")
    if not parsed.target and not parsed.program:
        raise UsageError("give a TARGET, as in `rung profile tiny-transformer`, or `-- COMMAND ...`.")
    if parsed.program:
        no_rest(parsed.rest)
        if not parsed.dry_run and shutil.which(parsed.program[0]) is None:
            raise UsageError(
                f"there is no program {parsed.program[0]!r}: give what you would type to run it, after `--`."
            )
    if parsed.madengine_config and parsed.preset:
        raise UsageError("give --preset or --madengine-config, not both.")
    for name in ("steps", "warm", "repeat"):
        if getattr(parsed, name) < 1:
            raise UsageError(f"--{name} must be at least 1.")
    several = bool(parsed.nproc_per_node or parsed.launcher)
    if several and parsed.program:
        raise UsageError("a command starts its ranks itself: give `-- torchrun ...`, and leave --nproc-per-node out.")
    check_ranks(parsed)
    if (parsed.ranks or parsed.every) and not several:
        raise UsageError("--ranks and --every choose among several ranks: add --nproc-per-node or --launcher.")
    if parsed.ranks and parsed.every:
        raise UsageError("give --ranks or --every, not both.")
    if parsed.ranks and parsed.nproc_per_node and not parsed.slurm and max(parsed.ranks) >= parsed.nproc_per_node[0]:
        raise UsageError(f"there is no rank {max(parsed.ranks)}: {parsed.nproc_per_node[0]} ranks are counted from 0.")
    if parsed.wait < 0:
        raise UsageError("--wait must not be negative.")


def page(trace: Trace, record: Profile, parsed: argparse.Namespace) -> str:
    """What `rung analyze` says of the recording, and before it what the recording was."""
    from msgspec import structs

    from rung.analysis.per_step import per_step
    from rung.cli import analyze, tables
    from rung.records.record import plain
    from rung.report.profile import profile_lines
    from rung.runs import to_json

    if not parsed.json:
        trace = replace(trace, source=from_here(trace.source))
        record = structs.replace(record, folder=from_here(record.folder))
    trace, steps, note = per_step(trace)
    found = analyze.page(trace, steps, parsed, note)
    return (
        to_json({**plain(record), "analysis": found})
        if parsed.json
        else "\n".join([*profile_lines(record, tables.width()), "", found])
    )


def listed(as_json: bool) -> int:
    """The presets, and which profilers are here."""
    from rung.cli.tables import width
    from rung.profilers import presets
    from rung.records.record import plain
    from rung.report.profile import preset_lines
    from rung.runs import to_json

    found = presets.listed()
    print(to_json(plain(found)) if as_json else "\n".join(preset_lines(found, width())))
    return 0
