"""`rung climb`: parse, call, render."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import (
    IN_JOB,
    ROOT,
    TARGETS,
    add_command,
    after_the_answer,
    at_least,
    check_early,
    need_torch,
    no_rest,
    rung_names,
    say,
    seconds,
    share,
    stop_when_asked,
    target_options,
    typed,
)
from rung.cli.kubernetes import add_options as add_kubernetes_options
from rung.cli.live import line_width, live
from rung.cli.output import colored, show_styled, text_width
from rung.cli.ranks import add_rank_options, check_ranks
from rung.cli.remember import remembered
from rung.cli.slurm import add_options, followed, job_of
from rung.errors import UsageError
from rung.plan import CONTRACTS
from rung.program import program

if TYPE_CHECKING:
    from rung.records.climb import ClimbRun
    from rung.records.progress import Event
    from rung.runs import Run

FIXED = (
    "--numerics",
    "--rungs",
    "--deadline",
    "--slower-at-most",
    "--device",
    "--devices",
    "--jobs",
    "--nproc-per-node",
    "--out",
    "--dry-run",
)  # what a climb is begun with

EXAMPLE = """\
example, on two CPU cores:
  $ rung climb model.py:make --budget 90
  baseline: 8.71 ms (8.31 ms – 9.75 ms) per step; first run 19.9 ms; peak memory 396 MiB
    torch.compile: 1.10×, 8.70 ms → 7.91 ms per step, ready 22 s into the climb
    recipe.toml: fused-optimizer + compile, 1.10× over the untouched model, provisional
    recipe.toml: fused-optimizer + compile, 1.10× over the untouched model, verified
  Recipe: .rung/20261126-214713-model-make/recipe.toml

more:
  rung climb tiny-transformer                        the built-in workload
  rung climb tiny-transformer --size medium --mode train --numerics bf16
  rung climb model.py:make --rungs compile,sdpa --budget 600
  rung climb hf:Qwen/Qwen3-0.6B --task train --batch 4 --seq 1024 --numerics bf16 --budget 300
  rung climb timm:resnet50 --random-weights --write-workload resnet.py
  rung climb model.py:make --nproc-per-node 4        a data-parallel job of four ranks
  rung climb tiny-transformer --dry-run              only the plan and its predictions
  rung climb --resume .rung/RUN                      continue

Options that the command does not know go to the target: `rung climb tiny-transformer --help` lists
them.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "climb", help_text, EXAMPLE, run, target="target")
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help=TARGETS,
    )
    parser.add_argument(
        "--numerics", choices=CONTRACTS,
        help="what may change in the results: exact (only the order of sums; default on a CPU), tf32 (default on a GPU), bf16 or fp8",
    )  # fmt: skip
    parser.add_argument("--rungs", type=rung_names, metavar="A,B,...", help="try only these rungs, in this order")
    parser.add_argument(
        "--budget", type=seconds, metavar="SECONDS",
        help="stop after this time with the best recipe so far (default: go on until no promising rung is left)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=at_least(1), metavar="N",
        help="workers that may compile at the same time (default: half the CPU cores; for a workload on a CPU 1, or 2 from 8 cores on)",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", type=seconds, metavar="SECONDS",
        help="give up a candidate that compiles for longer than this (default: 900)",
    )  # fmt: skip
    parser.add_argument(
        "--slower-at-most", type=share, metavar="PERCENT",
        help="how much slower a rung may make the step if it saves memory or compile time (default: 1%%)",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the best one)")
    parser.add_argument(
        "--devices", type=device_numbers, metavar="auto|0,1,...",
        help="GPUs of the same kind: the first one times, the others repeat and verify; auto takes the idle ones",
    )  # fmt: skip
    add_rank_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"the run directory (default: a new one in {ROOT})")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue a climb that was interrupted, or whose budget ended; --budget gives it another one",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="measure the baseline, print the plan with its predictions, and stop"
    )
    parser.add_argument(
        "--write-workload",
        type=Path,
        metavar="FILE",
        help="write the workload that hf:, timm: or diffusers:NAME stands for to a file that you can edit, and stop",
    )
    add_options(parser, dry_run=False)
    add_kubernetes_options(parser)


def device_numbers(text: str) -> str:
    """`auto`, or numbers of GPUs with commas between."""
    numbers = text.split(",")
    if text != "auto" and not (all(number.isdecimal() for number in numbers) and len(set(numbers)) == len(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor numbers of GPUs, as in 0,1,2")
    return text


def device_of(parsed: argparse.Namespace) -> str | None:
    """The device that is timed. Raises UsageError where two are named."""
    first = (parsed.devices or "").split(",")[0]
    if not first.isdecimal():
        if first and parsed.device == "cpu":
            raise UsageError("--devices is for GPUs; leave it out with --device cpu.")
        device: str | None = parsed.device
        return device
    if parsed.device not in (None, f"cuda:{first}"):
        raise UsageError(
            f"--devices {parsed.devices} times on GPU {first}, and --device names {parsed.device}: leave one out."
        )
    return f"cuda:{first}"


def run(parsed: argparse.Namespace) -> int:
    need_torch()
    options = {} if parsed.resume else target_options(parsed)
    if parsed.target and not parsed.resume:
        check_early(parsed.target, parsed.device)  # before a second of imports
    from rung.ladder.climb import Request, resume, start
    from rung.launch.requeued import earlier_climb, in_job, mark
    from rung.launch.slurm_task import of_task, run_of_task
    from rung.records.climb import ClimbRun
    from rung.records.record import record_of
    from rung.report.progress import NEW_ANSWER, PAGE, keep_page, now_line, progress_lines, write_page
    from rung.report.terminal import summary
    from rung.rungs import rungs_named
    from rung.runs import Run, to_json

    stop_when_asked()  # the run directory is left with its status said
    if parsed.resume:
        no_rest([*parsed.rest, *([parsed.target] if parsed.target else [])])
        again = next((option for option in FIXED if typed(parsed, option)), None)
        if again:
            raise UsageError(
                f"{again} cannot be changed by --resume, which continues with the options that the climb was "
                "started with: leave it out, or start a new climb."
            )
    elif not parsed.target:
        raise UsageError("give a TARGET, as in `rung climb tiny-transformer`; see `rung climb --help`.")
    rungs_named(parsed.rungs or ())
    check_ranks(parsed)
    if parsed.nproc_per_node == (1,):
        raise UsageError("--nproc-per-node 1 is one process, which a climb runs without it: leave it out.")
    if parsed.write_workload:
        return write_workload(parsed.target or "", options, parsed.write_workload)
    if parsed.out:
        parsed.out = of_task(parsed.out)
    elif parsed.resume:
        parsed.resume = run_of_task(parsed.resume)
    command = shlex.join(["rung", *sys.argv[1:]])
    here = in_job(command)
    begun = None if parsed.resume else earlier_climb(ROOT, parsed.out, here, say)
    if begun and begun.ended:  # the next command of the job's script has its turn
        record = begun.record()
        print(to_json(begun.data()) if parsed.json else summary(record))
        return exit_code(record)
    going_on = begun.directory if begun else parsed.resume
    new: Run | None = None

    def told(event: Event) -> None:
        for line in progress_lines(event, line_width()):
            say(line)
        if isinstance(event, NEW_ANSWER):
            keep_page(climb.run)

    if parsed.resume and (job := job_of(parsed.resume)):
        say(f"this climb runs in job {job[0].job}; following it")
        return followed(job[0].job, job[1])
    try:
        if going_on:
            climb = resume(going_on, told, parsed.budget, parsed.launcher or "")
        else:
            request = Request(
                parsed.target,
                options,
                parsed.numerics,
                parsed.rungs,
                device_of(parsed),
                parsed.budget,
                parsed.deadline or Request.deadline,
                parsed.slower_at_most or Request.slower_at_most,
                command,
                parsed.jobs,
                parsed.devices or "",
                parsed.nproc_per_node[0] if parsed.nproc_per_node else 0,
                parsed.launcher or "",
                os.environ.get(IN_JOB, ""),
            )
            climb = start(request, ROOT, parsed.out, told)
            new = climb.run
            mark(new.directory, here)
        with live(climb.request.budget, lambda: now_line(climb.state.now())):
            data = climb.climb(dry=parsed.dry_run)
    except KeyboardInterrupt:
        if new:
            new.drop_if_empty()  # its --out can be given again
        return stopped(new or Run(going_on or Path()), parsed.json)
    except BaseException:
        if new:
            new.drop_if_empty()
        raise
    record = record_of(ClimbRun, data)
    with remembered("climb", *([] if parsed.dry_run else [data])):
        if parsed.json:
            print(to_json(data))
        elif not parsed.dry_run:
            show_styled(summary(record, text_width(), color=colored()))
        with after_the_answer():
            write_page(climb.run, record)
        if not parsed.json:
            print(f"report: {climb.run.directory / PAGE}")
    return exit_code(record)


def exit_code(record: ClimbRun) -> int:
    """1 where all that was kept was taken back."""
    return 1 if record.result and record.result.taken_back and not record.result.kept else 0


def write_workload(target: str, options: dict[str, str], path: Path) -> int:
    """Writes the file that a model by name stands for."""
    from rung.trace.output import whole
    from rung.workload.by_name import source
    from rung.workload.load import convert, find

    if path.exists():
        raise UsageError(f"{path} exists; give --write-workload a new file.")
    made = find(target)
    values = convert(target, made, options) if callable(made) else {}
    text = source(target, values)
    with whole(path) as out:
        out.write(text.encode())
    say(f"wrote {path}; climb it with: {program()} climb {shlex.quote(str(path))}:workload")
    return 0


def stopped(run: Run, as_json: bool) -> int:
    """After Ctrl-C or a kill: if asked for, the one JSON document of what there is so far, and the page."""
    from rung.records.climb import Begun, NotBegun
    from rung.records.record import plain
    from rung.report.commands import resume
    from rung.report.html import render
    from rung.runs import to_json

    begun = (run.directory / "manifest.json").is_file()
    data = run.data() if begun else plain(NotBegun(manifest=Begun(status="interrupted", why="stopped by Ctrl-C")))
    with remembered("climb", *([data] if begun else [])):
        if as_json:
            print(to_json(data))
        if begun:
            record = run.record()
            say(f"stopped; {best_so_far(record)}")
            say(f"continue with: {resume(record)}")
            with after_the_answer():
                run.write_text("report.html", render(record))
        else:
            say("stopped before any measurement.")
    return 130


def best_so_far(run: ClimbRun) -> str:
    """What a climb that was stopped leaves behind."""
    from rung.report.terminal import answer_line

    if not run.result or not run.result.kept:
        return "there is no recipe yet."
    return f"the best so far is in {Path(run.directory) / 'recipe.toml'}: {answer_line(run.result).partition(': ')[2]}."
