"""`rung report RUN`: the terminal's summary of a run, and its page made anew. Of several runs: side by side."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from rung.cli.common import ROOT, add_command, after_the_answer, say
from rung.cli.output import colored, show_styled, text_width
from rung.errors import UsageError

TRACKERS = ("mlflow", "tensorboard", "wandb")
EXAMPLE = """\
example, a climb on a busy CPU (shortened):
  $ rung report .rung/RUN
  net (infer, 526 k parameters)
  AMD EPYC · torch 2.13.0+cpu · numerics exact
  Baseline: 19.6 ms per step, peak memory 241 MiB
    matrix products       9.33 ms   48%  ██████████████
    Python and dispatch   4.20 ms   21%  ██████
  Kept: compile
  Recipe: .rung/RUN/recipe.toml

more:
  rung report .rung/20*                      several climbs: their results, and each rung's verdict
  rung report .rung/20* --html climbs.html   the same as a page
  rung report .rung/RUN --log-to mlflow      log figures, attempts, page and traces to MLflow

RUN stands for the name of a run directory, such as 20261126-214713-model-make. `rung runs` lists
them.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "report", help_text, EXAMPLE, run)
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="one or more run directories (default: the newest climb here)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="where to write the page (default for one run: RUN/report.html)"
    )
    parser.add_argument("--log-to", choices=TRACKERS, help="also log one run to this experiment tracker (pip install 'rung[trackers]')")  # fmt: skip


def newest() -> Path:
    """The climb that began last, of those below the folder in which runs are."""
    found = sorted((path.parent for path in ROOT.glob("*/manifest.json")), key=lambda folder: folder.name)
    if not found:
        raise UsageError(f"there is no climb in {ROOT}/ here: give a run directory.")
    if len(found) > 1:
        say(f"the newest of {len(found)} climbs: {found[-1]}; `rung runs` lists all")
    return found[-1]


def run(parsed: argparse.Namespace) -> int:
    if not parsed.directories:
        parsed.directories = [newest()]
    if len(parsed.directories) > 1 and parsed.log_to:
        raise UsageError("--log-to takes one run at a time; give one directory.")
    if len(parsed.directories) > 1:
        return several(parsed)
    from rung.records.climb import ClimbRun
    from rung.records.record import record_of
    from rung.report.climb_traces import traces_of
    from rung.report.html import render
    from rung.report.terminal import summary
    from rung.runs import Run, to_json, write_whole

    [directory] = parsed.directories
    run = Run.open_(directory)
    data = run.data()
    record = record_of(ClimbRun, data)
    show_styled(to_json(data) if parsed.json else summary(record, text_width(), color=colored()))
    with after_the_answer():  # a run that was archived may lie where nothing can be written
        if parsed.html:
            write_whole(parsed.html, render(record, traces_of(directory, record, parsed.html)), "give another --html")
        else:
            text = render(record, traces_of(directory, record, directory / "report.html"))
            run.write_text("report.html", text, f"copy {directory} to where there is")
    page = parsed.html or directory / "report.html"
    if not parsed.json:
        print(f"report: {page}")
    if parsed.log_to:
        from rung.integrations.trackers import log, tracked

        with after_the_answer():
            say(f"{parsed.log_to}: {log(parsed.log_to, tracked(directory, record, page))}")
    return 0


def several(parsed: argparse.Namespace) -> int:
    from rung.records.climb import Climbs
    from rung.records.record import plain
    from rung.report.climbs import climb_of, climbs_lines, page
    from rung.runs import Run, to_json, write_whole

    climbs = [climb_of(Run.open_(directory).record()) for directory in parsed.directories]
    if parsed.json:
        show_styled(to_json(plain(Climbs(climbs=climbs))))
    else:
        width = max(80, shutil.get_terminal_size((100, 24)).columns)
        show_styled("\n".join(climbs_lines(climbs, width, colored())))
    if parsed.html:
        with after_the_answer():
            write_whole(parsed.html, page(climbs), "give another --html")
        say(f"page: {parsed.html}")
    return 0
