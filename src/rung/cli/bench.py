"""`rung bench`: parse, call, render."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import (
    TARGETS,
    add_command,
    after_the_answer,
    check_early,
    need_torch,
    regular_file,
    rung_names,
    say,
    seconds,
    share,
    stop_when_asked,
    target_options,
)
from rung.cli.kubernetes import add_options as add_kubernetes_options
from rung.cli.live import live
from rung.cli.ranks import add_rank_options, check_ranks, launcher_of
from rung.cli.remember import remembered
from rung.cli.slurm import add_options
from rung.errors import RungError, UsageError, WorkloadError

if TYPE_CHECKING:
    from rung.records.bench import Bench, Failed

EXAMPLE = """\
example, a training step on two CPU cores (shortened):
  $ rung bench model.py:make --time 5
  net, train, on AMD EPYC
  median step   11.0 ms (10.6 ms – 11.5 ms), 95% interval, 430 samples
                not yet within ±0.5%: raise --time
  throughput    46615 samples/s
  peak memory   396 MiB

more:
  rung bench tiny-transformer --recipe .rung/RUN/recipe.toml   under the recipe of a climb
  rung bench model.py:make --rungs compile                     under torch.compile
  rung bench ops.py:scale --call --n 4096                      a plain function, called with n=4096
  rung bench model.py:make --sweep batch=64,128                once for each value of an option
  rung bench model.py:make --nproc-per-node 1,2,4,8            how data-parallel training scales

presets:
  sanity   run it once: does it run?
  quick    3 warm-up runs and 5 timed ones
  proper   until the median is as precise as --target says, or --time is over (the default)
  compile  as proper, with an hour for the first compilation

Other options go to your function: `--batch 128` calls `def make(batch=64)` with batch=128.
`rung bench model.py:make --help` lists them.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "bench", help_text, EXAMPLE, run, target="target")
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help=TARGETS,
    )
    parser.add_argument(
        "--recipe", type=regular_file, metavar="FILE", help="run under this recipe, with the options that it holds"
    )
    parser.add_argument("--rungs", type=rung_names, metavar="A,B,...", help="run with these rungs, instead of a recipe")
    parser.add_argument("--call", action="store_true", help="TARGET is a plain function, not a workload")
    parser.add_argument("--preset", choices=("sanity", "quick", "proper", "compile"), default="proper",
                        help="how long to measure; see below (default: proper)")  # fmt: skip
    parser.add_argument("--target", dest="precision", type=share, default=0.005, metavar="0.5%",
                        help="stop when the confidence interval of the median is this narrow, to either side (default: 0.5%%)")  # fmt: skip
    parser.add_argument(
        "--time", type=seconds, default=30.0, metavar="SECONDS", help="stop measuring after this time (default: 30)"
    )
    parser.add_argument("--timer", choices=("auto", "events", "graph", "batch"), default="auto",
                        help="on a GPU: time calls as they are launched (events), or hide the launches in a CUDA or HIP graph or in a batch (default: auto, which hides them if a call takes less than 100 µs)")  # fmt: skip
    parser.add_argument("--cold", action="store_true", help="flush the GPU's caches before every step")
    parser.add_argument(
        "--flops",
        type=float,
        metavar="N",
        help="FLOP of one step, if you know them (Rung counts a workload's matrix products)",
    )
    parser.add_argument(
        "--flops-in",
        metavar="PRECISION",
        help="precision of these FLOP, for their share of the GPU's peak: fp64, fp32, tf32, fp16, bf16, fp8",
    )
    parser.add_argument(
        "--bytes",
        type=float,
        metavar="N",
        help="bytes that one step must read and write, for their share of the memory bandwidth",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=A,B,...",
        help="measure with each of these values of a TARGET option; may be given again",
    )
    add_rank_options(parser, several=True)
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write every sample as CSV: one row per step, in nanoseconds"
    )
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table, for an issue or a report")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the histogram and the time series")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the best one)")
    parser.add_argument(
        "--deadline", type=seconds, metavar="SECONDS", help="time limit for compiling (default: the preset's)"
    )
    add_options(parser)
    add_kubernetes_options(parser)


def run(parsed: argparse.Namespace) -> int:
    if not parsed.target:
        raise UsageError("give a TARGET, as in `rung bench tiny-transformer`; see `rung bench --help`.")
    need_torch()
    from rung.launch import torchrun
    from rung.recipes.recipe import side_of
    from rung.records.record import plain
    from rung.timing.bench import bench
    from rung.timing.sweep import over_ranks, sweep
    from rung.timing.work import SuppliedWork

    if parsed.recipe and parsed.rungs:
        raise UsageError("give --recipe or --rungs, not both.")
    options = target_options(parsed)
    points = grid(parsed.sweep)
    if twice := next((name for name in points if _spelled(name) in map(_spelled, options)), ""):
        raise UsageError(f"--sweep {twice} and --{twice}: the option would have two values; give one of the two.")
    check_ranks(parsed)
    check_early(parsed.target, parsed.device)
    stop_when_asked()
    side = side_of(parsed.target, options, parsed.rungs, parsed.recipe, call=parsed.call)
    say(f"measuring {side.target}" + (f" with {' + '.join(side.rungs)}" if side.rungs else "") + " ...")
    measure = partial(
        bench,
        preset=parsed.preset,
        precision=parsed.precision,
        seconds=parsed.time,
        device=parsed.device,
        deadline=parsed.deadline,
        timer=parsed.timer,
        cold=parsed.cold,
        work=SuppliedWork(parsed.flops, parsed.flops_in, parsed.bytes),
        recipe=parsed.recipe,
    )
    if len(parsed.nproc_per_node) > 1:
        each = over_ranks(side, parsed.nproc_per_node, lambda side, count: measure(side, launcher=torchrun(count)))
    else:
        each = sweep(side, points, partial(measure, launcher=launcher_of(parsed)))
    results: list[Bench | Failed] = []
    stop: BaseException | None = None
    try:
        with live():
            for record in each:
                results.append(record)
    except (RungError, KeyboardInterrupt) as error:
        stop = error
    documents = [plain(record) for record in results]
    with remembered("bench", *documents, target=parsed.target, call=parsed.call):
        show(results, parsed, refused=isinstance(stop, RungError))
    if stop:
        if isinstance(stop, RungError) and results and (point := at(results[-1])):
            stop.args = (f"{point}: {stop}",)
        stop.told = bool(results)  # type: ignore[attr-defined]
        raise stop
    return 0 if all(r.status == "complete" for r in results) else WorkloadError.exit_code


def at(result: Bench | Failed) -> str:
    """The point of a sweep in words; empty without a sweep."""
    return ", ".join(f"{k}={v}" for k, v in (result.point or {}).items())


def show(results: Sequence[Bench | Failed], parsed: argparse.Namespace, refused: bool = False) -> None:
    """What was measured, all or the part before the workload failed or someone stopped it: the document of --json, the
    table or the lines, the files that were asked for; of what is not complete, a line on stderr. refused: the last of them is what the command ends with, and says."""
    from rung.records.bench import Bench
    from rung.records.record import plain
    from rung.report.bench import bench_lines, markdown_lines, partial_line, samples_csv, sweep_lines
    from rung.report.over_ranks import scaling_lines
    from rung.runs import to_json, write_whole

    done = [r for r in results if isinstance(r, Bench)]
    saved = parsed.csv and any(r.samples for r in results)
    several = parsed.sweep or len(parsed.nproc_per_node) > 1
    if parsed.json and results:
        documents = [plain(r) for r in results]
        print(to_json(documents if several else documents[0]))
    elif several and results:
        print("\n".join(sweep_lines(results) if parsed.sweep else scaling_lines(results)))
    elif done:
        print("\n".join(markdown_lines(done[0]) if parsed.markdown else bench_lines(done[0])))
    with after_the_answer():
        if saved:
            write_whole(parsed.csv, samples_csv(results), "give another --csv")
        if parsed.html and done:
            from rung.report.samples_page import bench_page

            write_whole(parsed.html, bench_page(done), "give another --html")
            say(f"page: {parsed.html}")
    for r in results:
        point = at(r)
        if isinstance(r, Bench):
            for note in r.notes if several and not parsed.json else ():  # the table has no room for them
                say(f"note: {point}: {note}")
            continue
        if point and not (refused and r is results[-1]):
            say(f"rung: {point}: {r.error}")
        if r.summary:
            say(partial_line(r.summary) + (f" They are in {parsed.csv}." if saved else ""))


def _spelled(name: str) -> str:
    """An option's name in one of its two spellings: `a_b` and `a-b` are one."""
    return name.replace("_", "-")


def grid(sweeps: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=A,B` of every --sweep."""
    found: dict[str, list[str]] = {}
    for text in sweeps:
        name, equals, values = text.partition("=")
        if not equals or not name or not all(values.split(",")):
            raise UsageError(f"--sweep {text}: write NAME=A,B,... with a name of the target's options.")
        if _spelled(name) in map(_spelled, found):
            raise UsageError(f"--sweep {name} was given twice; give all its values in one: --sweep {name}=A,B,...")
        found[name] = values.split(",")
    return found
