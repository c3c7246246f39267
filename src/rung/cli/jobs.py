"""`rung jobs`: parse, call, render."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import IN_JOB, add_command, say, stop_when_asked
from rung.cli.slurm import JOBS, followed
from rung.errors import UsageError

if TYPE_CHECKING:
    from rung.records.slurm_job import SlurmJob

EXAMPLE = """\
example:
  $ rung jobs
  job  state      hosts  submitted                  command
  1    completed  n1     2026-11-26T19:59:12+00:00  bench model.py:make --preset sanity

more:
  rung jobs follow 12        follow job 12 to its end, and print its answer
  rung jobs cancel 12        cancel job 12
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "jobs", help_text, EXAMPLE, run)
    parser.add_argument(
        "what", nargs="?", choices=("list", "follow", "cancel"), default="list", metavar="list|follow|cancel"
    )
    parser.add_argument("job", nargs="?", type=int, metavar="JOB", help="the SLURM job number")


def run(parsed: argparse.Namespace) -> int:
    if parsed.what != "list" and parsed.job is None:
        raise UsageError(f"give the number of a job, as in `rung jobs {parsed.what} 12`; `rung jobs` lists them.")
    jobs = submitted()
    if parsed.job is not None and parsed.job not in {job.job for job, _ in jobs}:
        raise UsageError(f"no job {parsed.job} was submitted from this folder: {JOBS} has no record of it.")
    if parsed.what == "list":
        return show([(job, folder) for job, folder in jobs if parsed.job in (None, job.job)], parsed.json)
    folder = next(folder for job, folder in jobs if job.job == parsed.job)
    if parsed.what == "cancel":
        from rung.launch.slurm import cancel

        cancel(parsed.job)
        say(f"job {parsed.job} is being cancelled; what it wrote is in {folder}")
        return 0
    stop_when_asked()
    return followed(parsed.job, folder)


def submitted() -> list[tuple[SlurmJob, Path]]:
    """The jobs that were submitted from the current folder, the earliest first, and their folders. A record that cannot be read is left
    out, with a word."""
    import msgspec

    from rung.launch.slurm import RECORD
    from rung.records.slurm_job import SlurmJob

    found = []
    for path in sorted(JOBS.glob(f"*/{RECORD}")):
        try:
            found.append((msgspec.json.decode(path.read_bytes(), type=SlurmJob), path.parent.resolve()))
        except (OSError, msgspec.DecodeError) as error:
            say(f"note: {path} is not a record of a job and is left out: {error}")
    return found


def job_of(run: Path) -> tuple[SlurmJob, Path] | None:
    """The job in which a climb of that run directory runs or waits, with its folder; None where there is none."""
    if IN_JOB in os.environ:  # this is it
        return None
    from rung.launch.slurm import look

    ours = [(job, folder) for job, folder in submitted() if job.run and Path(job.run).resolve() == run.resolve()]
    return next(((job, folder) for job, folder in ours if (state := look(job.job)) and state.alive), None)


def show(jobs: list[tuple[SlurmJob, Path]], as_json: bool) -> int:
    from msgspec.structs import asdict

    from rung.launch.slurm import look
    from rung.records.record import plain
    from rung.records.slurm_job import ListedJob
    from rung.report.jobs import job_lines
    from rung.runs import to_json

    listed = []
    for job, folder in jobs:
        state = look(job.job)
        name, hosts = (state.name.lower(), state.hosts) if state else (None, "")
        listed.append(ListedJob(**asdict(job), folder=str(folder), state=name, hosts=hosts))
    if as_json:
        print(to_json([plain(job) for job in listed]), end="")
    elif listed:
        print("\n".join(job_lines(listed)))
    else:
        print(f"no job was submitted from this folder: {JOBS} is empty.")
    return 0
